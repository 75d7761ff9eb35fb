"""Client of the global scheduler: place requests, follow the live engines, lead a group, ask for the status."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from hostless.v1 import scheduler_pb2 as pb
from hostless.v1 import scheduler_pb2_grpc
from services.common import rpc
from services.common.backoff import Backoff
from services.common.lane.shortcut import Shortcut

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_TABLE_S = 5.0


def bring_to_end(roles: Iterable[int]) -> bool:
    """Whether engines of these roles (pb.Role) bring a request to its end: one that does it all, or one that prefills
    and one that decodes."""
    found = set(roles)
    return pb.ROLE_UNIFIED in found or {pb.ROLE_PREFILL, pb.ROLE_DECODE} <= found


class SchedulerUnavailable(Exception):
    """The global scheduler is not there, or did not answer in time; the message names it."""


class SchedulerClient:
    """One channel to one scheduler, which reconnects by itself. Close it, or use it as an async context."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = rpc.channel(address)
        self._stub = scheduler_pb2_grpc.GlobalSchedulerStub(self._channel)
        self._lane = Shortcut(address, "hostless.v1.GlobalScheduler/Schedules")

    async def schedule(self, items: Sequence[pb.ScheduleItem], timeout_s: float = 1.0) -> list[pb.Placement]:
        """One placement an item, in order; a refused one has no engine, and a refusal `reason: words` whose
        reason is a value of policy.state.RefusalReason.

        Raises SchedulerUnavailable: then go round robin over the last table.
        """
        placements = await self._at_once(items, timeout_s)
        waiting = [i for i, placed in enumerate(placements) if not placed.HasField("engine") and not placed.refusal]
        if waiting:
            request = pb.ScheduleRequest(items=[items[i] for i in waiting])
            reply = await self._answer(self._stub.Schedule(request, timeout=timeout_s))
            self._lane.offer(reply.lane_port)
            for i, placed in zip(waiting, reply.placements, strict=True):
                placements[i] = placed
        return placements

    async def watch(self) -> AsyncGenerator[pb.PlacementTable, None]:
        """The table of live engines now and after each change, for ever. While the scheduler is away nothing
        comes; when it is back the table comes again, its version perhaps smaller. Wrap in `aclosing`."""
        backoff = Backoff()
        while True:
            call = self._stub.Watch(pb.WatchRequest())
            try:
                table = await asyncio.wait_for(call.read(), FIRST_TABLE_S)
                while table is not grpc.aio.EOF:
                    backoff.reset()
                    yield table
                    table = await call.read()
                reason = "the stream ended"
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                reason = error.details() or "" if isinstance(error, grpc.aio.AioRpcError) else "no answer"
            finally:
                call.cancel()
            log.info("watching the global scheduler is interrupted", extra={"address": self.address, "reason": reason})
            await backoff.pause()

    def lead(self) -> Any:
        """A new Lead stream (D9), a grpc.aio.StreamStreamCall of LeaderUp and LeaderDown. The caller, who is
        services/gpu_backend/leader.py, sets the deadlines and cancels it."""
        return self._stub.Lead()

    async def status(self, timeout_s: float = 5.0) -> pb.MeshStatus:
        """Every engine that a leader speaks for, live or not. Raises SchedulerUnavailable."""
        return await self._answer(self._stub.Status(pb.StatusRequest(), timeout=timeout_s))

    async def _at_once(self, items: Sequence[pb.ScheduleItem], timeout_s: float) -> list[pb.Placement]:
        """By the lane, if there is one. Empty: must be asked by a call."""
        try:
            answer = await self._lane.ask(pb.ScheduleRequest(items=items).SerializeToString(), timeout_s)
        except TimeoutError:
            raise SchedulerUnavailable(f"the global scheduler at {self.address}: no answer on the lane") from None
        return list(pb.ScheduleReply.FromString(answer).placements) if answer else [pb.Placement() for _ in items]

    async def close(self) -> None:
        await self._lane.close()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            raise SchedulerUnavailable(f"the global scheduler at {self.address}: {reason}") from error
