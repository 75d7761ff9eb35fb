"""The gRPC shell: hears leaders, asks the policy, tells watchers."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from prometheus_client import Histogram

from hostless.v1 import scheduler_pb2 as pb
from hostless.v1 import scheduler_pb2_grpc
from services.global_scheduler.held import HeldIndex
from services.global_scheduler.mesh import PATHS, EngineReplaced, Leader, MalformedReport, Mesh
from services.global_scheduler.policy.state import Decision, Refusal, RefusalReason, Request

NAME = "hostless.v1.GlobalScheduler"

Context = grpc.aio.ServicerContext[Any, Any]

ANSWER_S = 0.05
"""A call whose requests still wait is answered so long before its deadline."""


class SchedulerService(scheduler_pb2_grpc.GlobalSchedulerServicer):  # type: ignore[misc]
    """All calls run on one event loop, so none sees the mesh half changed."""

    def __init__(self, mesh: Mesh, schedule_seconds: Histogram, wait_s: float = 0.5) -> None:
        """`wait_s`: longest wait of a request for an engine."""
        self._mesh = mesh
        self._seconds = schedule_seconds
        self._wait_s = wait_s
        self.lane_port = 0
        """Where the lane is served, which `answer` answers."""
        self._ids = itertools.count(1)  # the callers' ids need not differ
        self._waiting: dict[str, asyncio.Future[pb.Placement]] = {}
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
        requests, decided = self._decide(request)
        if undecided := [asked for asked in requests if asked.request_id not in decided]:
            decided |= await self._wait(undecided, context.time_remaining())
        placements = [decided[asked.request_id] for asked in requests]
        return pb.ScheduleReply(placements=placements, lane_port=self.lane_port)

    def answer(self, request: bytes) -> bytes:
        """A Schedules message on the lane."""
        requests, decided = self._decide(pb.ScheduleRequest.FromString(request))
        placements = []
        for asked in requests:
            if (placed := decided.get(asked.request_id)) is None:
                self._mesh.withdraw(asked.request_id)
            placements.append(placed or pb.Placement())
        return bytes(pb.ScheduleReply(placements=placements).SerializeToString())

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
        """After any change: those who wait may get an engine, watchers a new table."""
        if self._waiting:
            self._round()
        if self._mesh.refresh():
            self._changed.set()
            self._changed = asyncio.Event()

    def _decide(self, request: pb.ScheduleRequest) -> tuple[list[Request], dict[str, pb.Placement]]:
        begun = time.perf_counter()
        requests = [_request(str(next(self._ids)), item, self._mesh.held) for item in request.items]
        decided = self._round(requests)
        self._seconds.observe(time.perf_counter() - begun)
        return requests, decided

    def _round(self, requests: Sequence[Request] = ()) -> dict[str, pb.Placement]:
        """What is decided now, told in full at once: an engine may be gone a moment later."""
        decided = {key: self._placement(decision) for key, decision in self._mesh.place(requests).items()}
        for request_id in decided.keys() & self._waiting.keys():
            self._waiting[request_id].set_result(decided[request_id])
        return decided

    async def _wait(self, requests: Sequence[Request], left_s: float | None) -> dict[str, pb.Placement]:
        """Answers for all of them: a refusal for those that waited too long."""
        loop = asyncio.get_running_loop()
        wait_s = self._wait_s if left_s is None else max(min(self._wait_s, left_s - ANSWER_S), 0)
        futures = {asked.request_id: loop.create_future() for asked in requests}
        self._waiting |= futures
        try:
            await asyncio.wait(futures.values(), timeout=wait_s)
        finally:  # the caller may be gone
            for request_id in futures:
                del self._waiting[request_id]
                self._mesh.withdraw(request_id)
        return {
            request_id: future.result() if future.done() else self._placement(_overloaded(request_id, wait_s))
            for request_id, future in futures.items()
        }

    def _placement(self, decision: Decision) -> pb.Placement:
        if isinstance(decision, Refusal):
            return pb.Placement(refusal=f"{decision.reason.value}: {decision.message}")
        engines = self._mesh.engines
        return pb.Placement(
            engine=engines[decision.prefill].info,
            path=PATHS[decision.path],
            decode=engines[decision.decode].info if decision.decode != decision.prefill else None,
            prefill_read_tokens=decision.prefill_read_tokens,
            decode_read_tokens=decision.decode_read_tokens,
            reused_tokens=decision.reused_tokens,
        )


def _overloaded(request_id: str, wait_s: float) -> Refusal:
    message = f"the engines were overloaded for the {wait_s:g} s that it waited; try again"
    return Refusal(request_id, RefusalReason.OVERLOADED, message)


def _request(request_id: str, item: pb.ScheduleItem, held: HeldIndex) -> Request:
    return Request(
        request_id=request_id,
        model=item.model,
        prompt_tokens=item.prompt_tokens,
        cached_tokens=item.cached_tokens,
        max_tokens=item.max_tokens,
        exclude_engines=frozenset(item.exclude_engines),
        held=held.of(item.hit_marks, item.cached_tokens),
    )
