"""Client of the global scheduler: place requests, follow the table of live engines, ask for the status."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

import grpc

from hostless.v1 import scheduler_pb2 as pb
from hostless.v1 import scheduler_pb2_grpc
from services.common import rpc

log = logging.getLogger(__name__)

FIRST_TABLE_S = 5.0
BACKOFF_S = (0.1, 2.0)  # first and longest pause between attempts


class SchedulerClient:
    """One channel to one scheduler, which reconnects by itself. Close it, or use it as an async context."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = rpc.channel(address)
        self._stub = scheduler_pb2_grpc.GlobalSchedulerStub(self._channel)

    async def schedule(self, items: Sequence[pb.ScheduleItem], timeout_s: float = 1.0) -> list[pb.Placement]:
        """One placement an item, in order; a refused one has no engine, and a refusal `reason: words` whose
        reason is a value of policy.state.RefusalReason.

        Raises grpc.aio.AioRpcError (UNAVAILABLE, DEADLINE_EXCEEDED): then go round robin over the last table.
        """
        reply = await self._stub.Schedule(pb.ScheduleRequest(items=items), timeout=timeout_s)
        return list(reply.placements)

    async def watch(self) -> AsyncGenerator[pb.PlacementTable, None]:
        """The table of live engines now and after each change, for ever. While the scheduler is away nothing
        comes; when it is back the table comes again, its version perhaps smaller. Wrap in `aclosing`."""
        pause = BACKOFF_S[0]
        while True:
            call = self._stub.Watch(pb.WatchRequest())
            try:
                table = await asyncio.wait_for(call.read(), FIRST_TABLE_S)
                while table is not grpc.aio.EOF:
                    pause = BACKOFF_S[0]
                    yield table
                    table = await call.read()
                reason = "the stream ended"
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                reason = error.details() or "" if isinstance(error, grpc.aio.AioRpcError) else "no answer"
            finally:
                call.cancel()
            log.info("watching the global scheduler is interrupted", extra={"address": self.address, "reason": reason})
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, BACKOFF_S[1])

    async def status(self, timeout_s: float = 5.0) -> pb.MeshStatus:
        """Every engine that a leader speaks for, live or not."""
        return await self._stub.Status(pb.StatusRequest(), timeout=timeout_s)

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
