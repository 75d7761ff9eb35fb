"""Sleeping for less than a millisecond: the event loop's timers count whole ones, the kernel's do not."""

import asyncio
import ctypes
import os
import time

_libc = ctypes.CDLL(None, use_errno=True)


class _Spec(ctypes.Structure):  # struct itimerspec
    _fields_ = tuple((name, ctypes.c_long) for name in ("again_s", "again_ns", "first_s", "first_ns"))


class FineTimer:
    """A Linux timer as one task's sleep. Make it on the loop that uses it, and close it."""

    def __init__(self) -> None:
        """Raises OSError if the process may not open another file."""
        self._loop = asyncio.get_running_loop()
        self._fd: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._rung: asyncio.Future[None] | None = None
        self._loop.add_reader(self._fd, self._ring)

    async def sleep(self, seconds: float) -> None:
        """One sleep at a time."""
        spec = _Spec(first_s=int(seconds), first_ns=max(1, int(seconds % 1 * 1e9)))
        _libc.timerfd_settime(self._fd, 0, ctypes.byref(spec), None)
        self._rung = self._loop.create_future()
        await self._rung

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _ring(self) -> None:
        os.read(self._fd, 8)
        if self._rung is not None and not self._rung.done():  # the sleeper may have been cancelled
            self._rung.set_result(None)
