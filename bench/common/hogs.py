"""Host load for benches: many processes that compress, copy memory, or build C++, until told to stop.

    python -m bench.common.hogs {mixed,copy,build} COUNT SECONDS

They end by themselves after SECONDS, and when their parent is gone.
"""

import bz2
import itertools
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
KINDS = ("mixed", "copy", "build")
_COPIED = 64 << 20
_COMPRESSED = 1 << 20


def _compress() -> Iterator[None]:
    data = os.urandom(_COMPRESSED // 4) * 4
    while True:
        bz2.compress(data)
        yield


def _copy() -> Iterator[None]:
    source, target = memoryview(bytearray(_COPIED)), memoryview(bytearray(_COPIED))
    while True:
        target[:] = source
        yield


def _build(number: int) -> Iterator[None]:
    """Compiles the project's own native modules, over and over."""
    import nanobind

    folder = Path(nanobind.include_dir()).parent
    folders = [ROOT / "services" / part for part in ("fabric/native", "gpu_backend/scheduler", "gpu_backend/device")]
    sources = [*(each for part in folders for each in part.glob("*_module.cpp")), folder / "src" / "nb_combined.cpp"]
    includes = [sysconfig.get_path("include"), folder / "include", folder / "ext" / "robin_map" / "include", *folders]
    flags = ["-std=c++20", "-O2", "-fPIC", "-c", *(f"-I{each}" for each in includes)]
    with tempfile.TemporaryDirectory() as out:
        for source in itertools.cycle(sources[number % len(sources) :] + sources[: number % len(sources)]):
            command = [*shlex.split(os.environ.get("CXX", "g++")), *flags, str(source), "-o", f"{out}/built.o"]
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            yield


def hog(kind: str, number: int, seconds: float) -> None:
    parent, end = os.getppid(), time.monotonic() + seconds
    if kind == "mixed":
        work = _copy() if number % 2 else _compress()
    else:
        work = _copy() if kind == "copy" else _build(number)
    for _ in work:
        if os.getppid() != parent or time.monotonic() > end:
            return


def herd(kind: str, count: int, seconds: float) -> None:
    parent, children = os.getppid(), []
    for number in range(count):
        child = os.fork()
        if child == 0:
            hog(kind, number, seconds)
            os._exit(0)
        children.append(child)
    while children:
        children = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)
        time.sleep(0.2)


class Hogs:
    """`count` hogs of a kind while the context lasts, on these cores; none outlives `seconds` by much."""

    def __init__(self, kind: str, count: int, seconds: float, cores: Collection[int] = ()) -> None:
        if kind not in KINDS:
            raise ValueError(f"no hogs of kind {kind!r}; there are {', '.join(KINDS)}")
        self._command = [sys.executable, "-m", "bench.common.hogs", kind, str(count), str(seconds)]
        if cores:
            self._command = ["taskset", "-c", ",".join(map(str, sorted(cores))), *self._command]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, cwd=ROOT, start_new_session=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # a session of its own: the herd, and the compilers it runs
        self._process.wait(20)


if __name__ == "__main__":
    herd(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
