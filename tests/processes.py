"""Services as processes of their own, which tests may ask, kill and freeze."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

WAIT_S = 120.0


def running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter when it goes between opening and reading
        return False


class ServiceProcess:
    """`python -m services.NAME`. `address` and `metrics` are set once it serves."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.address = self.metrics = ""

    async def serving(self) -> None:
        """Returns when it says so. AssertionError, with all that it said, when it ends instead or takes too long."""
        assert self.process.stderr
        said = []
        try:
            async with asyncio.timeout(WAIT_S):
                async for line in self.process.stderr:
                    said.append(line.decode())
                    told = json.loads(line) if line.startswith(b"{") else {}
                    if told.get("message") == "metrics":
                        self.metrics = f"127.0.0.1:{told['port']}"
                    if told.get("message") == "serving":
                        self.address = f"127.0.0.1:{told['port']}"
                        return
                code = await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"does not serve after {WAIT_S:.0f} s: {''.join(said)}") from None
        raise AssertionError(f"ended with {code}: {''.join(said)}")

    async def ended(self) -> tuple[int, str]:
        """Exit code and the rest of what it said."""
        async with asyncio.timeout(WAIT_S):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()

    async def kill(self) -> None:
        """Nothing when it has ended already."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()


async def start(name: str, *flags: str, **environ: str) -> ServiceProcess:
    """On free ports unless flags say otherwise. Returns at once; the caller kills it."""
    argv = ["-m", f"services.{name}", "--address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0", *flags]
    return ServiceProcess(
        await asyncio.create_subprocess_exec(
            sys.executable, *argv, stderr=asyncio.subprocess.PIPE, env={**os.environ, **environ}
        )
    )


@contextlib.asynccontextmanager
async def service(name: str, *flags: str, wait: bool = True, **environ: str) -> AsyncIterator[ServiceProcess]:
    """The same until the block ends. `wait`: until it serves."""
    running = await start(name, *flags, **environ)
    try:
        if wait:
            await running.serving()
        yield running
    finally:
        await running.kill()
