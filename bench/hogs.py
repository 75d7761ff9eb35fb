"""Host load for benches: processes that compress and processes that copy memory, until told to stop.

    python -m bench.hogs {bz2,copy} SECONDS

A hog ends by itself after SECONDS, and when its parent is gone.
"""

import bz2
import os
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

_COPIED = 64 << 20
_COMPRESSED = 1 << 20


def hog(kind: str, seconds: float) -> None:
    parent, end = os.getppid(), time.monotonic() + seconds
    if kind == "bz2":
        data = os.urandom(_COMPRESSED // 4) * 4
        while os.getppid() == parent and time.monotonic() < end:
            bz2.compress(data)
    else:
        source, target = memoryview(bytearray(_COPIED)), memoryview(bytearray(_COPIED))
        while os.getppid() == parent and time.monotonic() < end:
            target[:] = source


class Hogs:
    """`count` hogs, half of each kind, while the context lasts; none of them outlives `seconds`."""

    def __init__(self, count: int, seconds: float) -> None:
        self._count, self._seconds = count, seconds
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for i in range(self._count):
                command = [sys.executable, "-m", "bench.hogs", ("bz2", "copy")[i % 2], str(self._seconds)]
                self._processes.append(subprocess.Popen(command))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(10)
        self._processes.clear()


if __name__ == "__main__":
    hog(sys.argv[1], float(sys.argv[2]))
