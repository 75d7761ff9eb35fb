"""Engines as real processes, and a global scheduler in this one."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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


class ServiceProcess:
    """`address` is set once it serves."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.address = self.metrics = ""

    async def serving(self) -> None:
        """Returns when it says so; raises EOFError with what it said instead."""
        assert self.process.stderr
        said = []
        async with asyncio.timeout(120):
            async for line in self.process.stderr:
                said.append(line.decode())
                told = json.loads(line) if line.startswith(b"{") else {}
                if told.get("message") == "metrics":
                    self.metrics = f"127.0.0.1:{told['port']}"
                if told.get("message") == "serving":
                    self.address = f"127.0.0.1:{told['port']}"
                    return
        raise EOFError("".join(said))

    async def ended(self) -> tuple[int, str]:
        """Exit code and the rest of what it said."""
        _, errors = await asyncio.wait_for(self.process.communicate(), 60)
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


@asynccontextmanager
async def service(name: str, shm: Path, *flags: str, wait: bool = True) -> AsyncIterator[ServiceProcess]:
    """python -m services.`name`, on a free port unless the flags say otherwise, its shared memory in `shm`."""
    argv = ["-m", f"services.{name}", "--address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0", *flags]
    pipe, environ = asyncio.subprocess.PIPE, {**os.environ, "HOSTLESS_SHM": str(shm)}
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, stderr=pipe, env=environ)
    running = ServiceProcess(process)
    try:
        if wait:
            await running.serving()
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def engine(
    shm: Path, *flags: str, scheduler: str = NOBODY, wait: bool = True
) -> AbstractAsyncContextManager[ServiceProcess]:
    """A small synthetic engine. Later flags win over earlier ones."""
    return service("gpu_backend", shm, "--scheduler", scheduler, *SMALL, *flags, wait=wait)


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
