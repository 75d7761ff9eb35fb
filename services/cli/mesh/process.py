"""One child process: started in a session of its own, watched through its pidfd, stopped by SIGTERM."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class Child:
    """A running (or ended) process whose output is appended to a log file.

    Its session is its own, so that Ctrl-C at the terminal reaches the supervisor alone. Not a
    coroutine to start, so that no cancellation can come between starting a process and knowing it.
    """

    def __init__(self, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.killed = False  # by kill(): it did not end by itself
        self._pidfd = os.pidfd_open(self.pid)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        self._process.wait()  # at once: the pidfd says that it has ended
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def wait(self) -> int:
        """Exit code once it has ended; -N when signal N ended it."""
        await self._ended.wait()
        return int(self._process.returncode)

    async def stop(self, deadline_s: float) -> bool:
        """SIGTERM, then SIGKILL to its whole session after `deadline_s`. Returns whether it ended by itself."""
        if not self.ended:
            self._process.terminate()
        try:
            async with asyncio.timeout(deadline_s):
                await self._ended.wait()
        except TimeoutError:
            self.kill()
            await self._ended.wait()
        return not self.killed

    def kill(self) -> None:
        """SIGKILL, at once, to the process and what it started."""
        if not self.ended:
            self.killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
