"""The Engine service over a FakeScheduler, with knobs to break it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from hostless.v1 import engine_pb2, engine_pb2_grpc
from services.common import rpc
from services.fabric.ring import LeaseState, RingOwner
from tests.tokenizer.ring.fake_scheduler import FakeScheduler, lease_of


class FakeEngine(engine_pb2_grpc.EngineServicer):  # type: ignore[misc]
    def __init__(self, owner: RingOwner, scheduler: FakeScheduler, ttl_ms: int) -> None:
        self.owner = owner
        self.scheduler = scheduler
        self.ttl_ms = ttl_ms
        self.turning = True
        self.refusals = 0  # renewals to come that find nobody
        self.leases: dict[int, int] = {}  # lease -> place
        self.renewals = 0
        self._next = 1

    async def Attach(self, request: engine_pb2.AttachRequest, context: Any) -> engine_pb2.RingLease:
        free = (i for i in range(self.owner.front_ends) if self.owner.lease_state(i) is LeaseState.FREE)
        place = next(free, None)
        if place is None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "all places are taken")
            raise AssertionError
        lease = lease_of(self.owner, place, self._next, self.ttl_ms)
        self.leases[self._next] = place
        self._next += 1
        return lease

    async def Renew(self, request: engine_pb2.RenewRequest, context: Any) -> engine_pb2.RenewReply:
        if self.refusals:
            self.refusals -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not answering")
        if request.lease_id not in self.leases:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no lease {request.lease_id}")
        self.renewals += 1
        return engine_pb2.RenewReply(ttl_ms=self.ttl_ms)

    async def Detach(self, request: engine_pb2.DetachRequest, context: Any) -> engine_pb2.DetachReply:
        if request.lease_id not in self.leases:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no lease {request.lease_id}")
        self.end(request.lease_id)
        return engine_pb2.DetachReply()

    async def Drain(self, request: engine_pb2.DrainRequest, context: Any) -> engine_pb2.DrainReply:
        return engine_pb2.DrainReply(unfinished=3)

    def end(self, lease_id: int) -> None:
        self.owner.end(self.leases.pop(lease_id))

    def places(self) -> list[LeaseState]:
        return [self.owner.lease_state(place) for place in range(self.owner.front_ends)]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Yields the address; the scheduler turns meanwhile."""

        async def turn() -> None:
            while True:
                if self.turning:
                    self.scheduler.turn(most=2)
                await asyncio.sleep(0.001)

        turning = asyncio.create_task(turn())
        try:
            async with rpc.serve(
                "127.0.0.1:0",
                lambda server: engine_pb2_grpc.add_EngineServicer_to_server(self, server),
                ["hostless.v1.Engine"],
                grace_s=0,
            ) as server:
                yield f"127.0.0.1:{server.port}"
        finally:
            turning.cancel()
