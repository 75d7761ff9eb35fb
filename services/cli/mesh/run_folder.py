"""A run of `hostless up` on disk: its logs, and mesh.json, by which other commands find its services.

The run holds a lock on its folder for as long as it lives, so a folder whose lock is free has ended.
"""

import fcntl
import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from services.cli.openai_api import OpenAiApi
from services.common.paths import run_dir

KEEP = 10
"""Ended runs whose logs stay."""


@dataclass(frozen=True)
class RunningService:
    name: str
    pid: int
    address: str
    metrics: str
    log: str
    restarts: int


@dataclass(frozen=True)
class Mesh:
    """What mesh.json holds."""

    pid: int  # of hostless up
    url: str
    started: float  # unix seconds
    services: tuple[RunningService, ...]

    def service(self, name: str) -> RunningService | None:
        return next((s for s in self.services if s.name == name), None)


class RunFolder:
    """This process's run, new and locked. Makes room first: of the ended ones only the newest stay."""

    def __init__(self) -> None:
        root = run_dir()
        root.mkdir(parents=True, exist_ok=True)
        for old in [folder for folder in sorted(root.glob("*/")) if not _alive(folder)][:-KEEP]:
            shutil.rmtree(old)
        self.path = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self.path.mkdir()
        self._lock = (self.path / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def log(self, name: str) -> Path:
        return self.path / f"{name}.log"

    def write(self, mesh: Mesh) -> None:
        """Replaces mesh.json in one step."""
        partial = self.path / "mesh.json.partial"
        partial.write_text(json.dumps(asdict(mesh), indent=1))
        partial.rename(self.path / "mesh.json")

    def close(self) -> None:
        """Says that the run has ended; its logs stay."""
        self._lock.close()


def find(url: str = "") -> Mesh | None:
    """The newest mesh of this machine that still runs, or the one that serves `url`, in any form that clients take;
    None when there is none. Raises UsageError for what is no URL."""
    root = OpenAiApi(url).root if url else ""
    for folder in sorted(run_dir().glob("*/"), reverse=True):
        if _alive(folder) and (mesh := _read(folder / "mesh.json")) and root in ("", mesh.url):
            return mesh
    return None


def here() -> Mesh | None:
    """The mesh of this machine that HOSTLESS_URL names, or without it the newest; None when there is none."""
    return find(os.environ.get("HOSTLESS_URL", ""))


def starting() -> Path | None:
    """The folder of the newest run that lives and is not ready yet; None when there is none."""
    folders = sorted(run_dir().glob("*/"), reverse=True)
    return next((f for f in folders if _alive(f) and not (f / "mesh.json").exists()), None)


def _read(path: Path) -> Mesh | None:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None  # not ready yet
    content["services"] = tuple(RunningService(**service) for service in content["services"])
    return Mesh(**content)


def _alive(folder: Path) -> bool:
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
