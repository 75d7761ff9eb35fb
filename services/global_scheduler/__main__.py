"""python -m services.global_scheduler"""

import asyncio
import contextlib
import logging
import sys
import time

from prometheus_client import CollectorRegistry

from services.common import lifecycle, metrics, rpc
from services.common.lane import server as lane
from services.global_scheduler.liveness import Leases
from services.global_scheduler.mesh import Mesh
from services.global_scheduler.metrics import MeshCollector, schedule_seconds
from services.global_scheduler.policy.registry import make_policy
from services.global_scheduler.service import NAME, SchedulerService
from services.global_scheduler.settings import SchedulerSettings

log = logging.getLogger("global_scheduler")

GRACE_S = 0.2  # a Schedule call takes less; the streams end only when cut


async def serve(settings: SchedulerSettings, life: lifecycle.Lifecycle) -> None:
    mesh = Mesh(make_policy(settings.policy, settings.parameters), Leases(settings.lease_s, time.monotonic))
    registry = CollectorRegistry()
    registry.register(MeshCollector(mesh))
    service = SchedulerService(mesh, schedule_seconds(registry), settings.wait_s)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(metrics.serve(settings.metrics_address, registry))
        if settings.lane_port >= 0:
            host = settings.address.rpartition(":")[0]
            service.lane_port = await stack.enter_async_context(lane.serve(host, settings.lane_port, service.answer))
        server = await stack.enter_async_context(rpc.serve(settings.address, service.register, [NAME], GRACE_S))
        log.info("serving", extra={"port": server.port, "policy": settings.policy, "lease_ms": settings.lease_ms})
        async with asyncio.TaskGroup() as tasks:
            expiry = tasks.create_task(service.expire())
            await life.until_stopping()
            expiry.cancel()
    log.info("stopped")


if __name__ == "__main__":
    sys.exit(lifecycle.main("global_scheduler", "Which engine serves a request.", SchedulerSettings, serve))
