"""Engines as real processes, and a global scheduler in this one."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.common import rpc
from services.global_scheduler.liveness import Leases
from services.global_scheduler.mesh import Mesh
from services.global_scheduler.metrics import schedule_seconds
from services.global_scheduler.policy.least_tokens import LeastTokens
from services.global_scheduler.service import NAME, SchedulerService

SMALL = [
    *("--slots", "64", "--prompt-words", "65536", "--token-words", "65536"),
    *("--engine", "synthetic", "--model", "test"),
]
NOBODY = "127.0.0.1:1"


class EngineProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.address = ""

    async def serving(self) -> None:
        """Returns when it says so; raises EOFError with what it said instead."""
        assert self.process.stderr
        said = []
        async with asyncio.timeout(120):
            async for line in self.process.stderr:
                said.append(line.decode())
                if line.startswith(b"{") and (told := json.loads(line))["message"] == "serving":
                    self.address = f"127.0.0.1:{told['port']}"
                    return
        raise EOFError("".join(said))

    async def ended(self) -> tuple[int, str]:
        """Exit code and the rest of what it said."""
        _, errors = await asyncio.wait_for(self.process.communicate(), 60)
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


@asynccontextmanager
async def engine(
    shm: Path, *flags: str, scheduler: str = NOBODY, address: str = "127.0.0.1:0", wait: bool = True
) -> AsyncIterator[EngineProcess]:
    """A synthetic engine whose ring lies in `shm`. Later flags win over earlier ones."""
    argv = ["-m", "services.gpu_backend", "--address", address, "--metrics-address", "", "--scheduler", scheduler]
    pipe = asyncio.subprocess.PIPE
    environ = {**os.environ, "HOSTLESS_SHM": str(shm)}
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, *SMALL, *flags, stderr=pipe, env=environ)
    running = EngineProcess(process)
    try:
        if wait:
            await running.serving()
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def scheduler(lease_s: float = 60) -> AsyncIterator[str]:
    """The address of a global scheduler in this process."""
    service = SchedulerService(
        Mesh(LeastTokens(), Leases(lease_s, time.monotonic)), schedule_seconds(CollectorRegistry())
    )
    async with (
        rpc.serve("127.0.0.1:0", service.register, [NAME], grace_s=0.1) as server,
        asyncio.TaskGroup() as tasks,
    ):
        expiry = tasks.create_task(service.expire())
        yield f"127.0.0.1:{server.port}"
        expiry.cancel()
