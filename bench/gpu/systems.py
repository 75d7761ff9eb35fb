"""The systems that bench.gpu_gateway measures, each pinned to its cores: a mesh that it starts, a server that runs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
_START_S = 150.0


@dataclass(frozen=True)
class Place:
    """A GPU and the cores beside it."""

    gpu: int = 0

    @property
    def engine(self) -> range:
        return self._cores(0, 8)

    @property
    def front(self) -> range:
        return self._cores(8, 14)

    @property
    def clients(self) -> range:
        return self._cores(14, 16)

    def _cores(self, begin: int, end: int) -> range:
        return range(16 * self.gpu + begin, 16 * self.gpu + end)


def pin(pid: int, cores: range) -> None:
    """All threads."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def with_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in with_children(int(child)))]


class Mesh:
    """`hostless up` on this machine, ready and pinned."""

    def __init__(self, scheduler: str, place: Place, port: int, deadline_s: float) -> None:
        self.place, self.url = place, f"http://127.0.0.1:{port}"
        self._run = tempfile.TemporaryDirectory()
        env = {
            **os.environ, "HOSTLESS_RUN": self._run.name, "HOSTLESS_GPU_BACKEND_WEIGHTS": "random",
            "HOSTLESS_GPU_BACKEND_LANES": "128", "HOSTLESS_GPU_BACKEND_KV_PAGES": "6400",
            "HOSTLESS_GPU_BACKEND_DEVICE_DEADLINE_S": str(deadline_s),
            "HOSTLESS_GATEWAY_MAX_RUNNING": "512", "HOSTLESS_GPU_BACKEND_GPU": str(place.gpu),
        }  # fmt: skip
        command = [sys.executable, "-m", "services.cli.main", "up", "--engine", "cuda", "--scheduler", scheduler,
                   "--model", "llama3-8b-random", "--no-kvstore", "--port", str(port)]  # fmt: skip
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed with the mesh
        begin = time.monotonic()
        self._up = subprocess.Popen(command, cwd=ROOT, env=env, stdout=self._log, stderr=self._log)
        try:
            self._wait(begin + _START_S)
            self.ready_s = round(time.monotonic() - begin, 1)
            self.pids = self._services(begin + _START_S)
        except BaseException:
            self.stop()
            raise
        self.engine_pids = [self.pids["gpu_backend"]]
        for name, pid in self.pids.items():
            pin(pid, place.engine if name == "gpu_backend" else place.front)

    def _wait(self, give_up: float) -> None:
        while True:
            if self._up.poll() is not None or time.monotonic() > give_up:
                self._log.seek(0)
                raise RuntimeError(f"the mesh did not become ready:\n{self._log.read()[-3000:]}")
            with contextlib.suppress(OSError, IndexError):
                urllib.request.urlopen(self.url + "/ready", timeout=5)
                return
            time.sleep(0.2)

    def _services(self, give_up: float) -> dict[str, int]:
        """Process ids by name, as soon as `up` has written them down."""
        while not (found := list(Path(self._run.name).glob("*/mesh.json"))):
            if time.monotonic() > give_up:
                raise RuntimeError("the mesh is ready, but does not say of which processes it is made")
            time.sleep(0.05)
        return {each["name"]: int(each["pid"]) for each in json.loads(found[0].read_text())["services"]}

    def stop(self) -> None:
        if self._up.poll() is None:
            self._up.send_signal(signal.SIGTERM)
            try:
                self._up.wait(40)
            except subprocess.TimeoutExpired:
                self._up.kill()
        self._up.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        for log in Path(self._run.name).rglob("gpu_backend*.log"):
            if error is not None:
                print(log.read_text()[-3000:])
        self._run.cleanup()


class Server:
    """Another OpenAI server that runs already: one process and its children."""

    def __init__(self, url: str, pid: int, place: Place) -> None:
        self.url, self.place = url, place
        self.engine_pids = with_children(pid)
        self.pids = {f"server {i}": each for i, each in enumerate(self.engine_pids)}
        for each in self.engine_pids:
            pin(each, place.engine)
