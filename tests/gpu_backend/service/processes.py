"""Engines as real processes, and a global scheduler in this one."""

import asyncio
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
from tests.processes import ServiceProcess, service

SMALL = [
    *("--slots", "64", "--prompt-words", "65536", "--token-words", "65536"),
    *("--engine", "synthetic", "--model", "test"),
]
NOBODY = "127.0.0.1:1"


def engine(
    shm: Path, *flags: str, scheduler: str = NOBODY, wait: bool = True
) -> AbstractAsyncContextManager[ServiceProcess]:
    """A small synthetic engine, its shared memory in `shm`. Later flags win over earlier ones."""
    return service("gpu_backend", "--scheduler", scheduler, *SMALL, *flags, wait=wait, HOSTLESS_SHM=str(shm))


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
