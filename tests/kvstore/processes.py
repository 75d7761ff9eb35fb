"""A store in a process of its own, which tests may kill."""

import asyncio
import contextlib
import json
import os
import sys


class StoreProcess:
    """A real store; `port` is where it serves."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port

    async def stderr(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def start_store(**changed: object) -> StoreProcess:
    """Ready to serve, on a free port unless told otherwise. Raises AssertionError with its log when it ends instead."""
    settings = {"address": "127.0.0.1:0", "metrics_address": "", **changed}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.kvstore", *flags, stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    assert process.stderr is not None
    lines = []
    async with asyncio.timeout(60):
        while line := await process.stderr.readline():
            lines.append(line.decode())
            with contextlib.suppress(ValueError):
                if json.loads(line).get("message") == "serving":
                    return StoreProcess(process, json.loads(line)["port"])
    await process.wait()
    raise AssertionError(f"the store ended with {process.returncode}: {''.join(lines)}")
