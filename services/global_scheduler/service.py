"""The gRPC shell: hears leaders, asks the policy, tells watchers."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from prometheus_client import Histogram

from hostless.v1 import scheduler_pb2 as pb
from hostless.v1 import scheduler_pb2_grpc
from services.global_scheduler.mesh import EngineReplaced, Leader, MalformedReport, Mesh
from services.global_scheduler.policy.state import Decision, Placement, ReadPath, Request

NAME = "hostless.v1.GlobalScheduler"

Context = grpc.aio.ServicerContext[Any, Any]

PATHS = {
    ReadPath.UNIFIED: pb.READ_PATH_UNIFIED,
    ReadPath.PREFILL: pb.READ_PATH_PREFILL,
    ReadPath.DECODE: pb.READ_PATH_DECODE,
}


class SchedulerService(scheduler_pb2_grpc.GlobalSchedulerServicer):  # type: ignore[misc]
    """All calls run on one event loop, so none sees the mesh half changed."""

    def __init__(self, mesh: Mesh, schedule_seconds: Histogram) -> None:
        self._mesh = mesh
        self._seconds = schedule_seconds
        self._changed = asyncio.Event()  # set, and replaced by a new one, when the table changes

    def register(self, server: grpc.aio.Server) -> None:
        scheduler_pb2_grpc.add_GlobalSchedulerServicer_to_server(self, server)

    async def Lead(self, ups: AsyncIterator[pb.LeaderUp], context: Context) -> AsyncIterator[pb.LeaderDown]:
        """The group's engines are dropped the moment its stream ends, however it ends."""
        leader = Leader()
        answer = pb.LeaderDown(lease_ms=int(self._mesh.leases.lease_s * 1000))
        try:
            async for up in ups:
                try:
                    self._mesh.hear(leader, up)
                except MalformedReport as error:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                except EngineReplaced as error:
                    await context.abort(grpc.StatusCode.ABORTED, str(error))
                self._publish()
                yield answer
        finally:
            self._mesh.leave(leader)
            self._publish()

    async def Schedule(self, request: pb.ScheduleRequest, context: Context) -> pb.ScheduleReply:
        begun = time.perf_counter()
        decisions = self._mesh.place([_request(item) for item in request.items])
        reply = pb.ScheduleReply(placements=[self._placement(decision) for decision in decisions])
        self._seconds.observe(time.perf_counter() - begun)
        return reply

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.PlacementTable]:
        """The table now, then after each change; changes that a slow watcher missed are sent as one."""
        while True:
            changed = self._changed
            yield self._mesh.table()
            await changed.wait()

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.MeshStatus:
        return self._mesh.status()

    async def expire(self) -> None:
        """Tells watchers of leases that run out. Runs for ever; sleeps until the next lease could end."""
        while True:
            self._publish()
            left = self._mesh.leases.next_end_s()
            if left is None:
                await self._changed.wait()
            else:
                await asyncio.sleep(left + 0.001)

    def _publish(self) -> None:
        if self._mesh.refresh():
            self._changed.set()
            self._changed = asyncio.Event()

    def _placement(self, decision: Decision) -> pb.Placement:
        if isinstance(decision, Placement):
            return pb.Placement(engine=self._mesh.engines[decision.decode].info, path=PATHS[decision.path])
        return pb.Placement(refusal=f"{decision.reason.value}: {decision.message}")


def _request(item: pb.ScheduleItem) -> Request:
    return Request(
        request_id=item.request_id,
        model=item.model,
        prompt_tokens=item.prompt_tokens,
        cached_tokens=item.cached_tokens,
        max_tokens=item.max_tokens,
        exclude_engines=frozenset(item.exclude_engines),
    )
