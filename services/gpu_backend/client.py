"""Client of hostless.v1.Engine: how a front end comes to hold a part of an engine's ring."""

from collections.abc import Awaitable
from typing import TypeVar

import grpc

from hostless.v1 import engine_pb2, engine_pb2_grpc
from hostless.v1.scheduler_pb2 import Role
from services.common import rpc
from services.gpu_backend.transfers import new_transfer

__all__ = ["EngineBusy", "EngineCallError", "EngineClient", "EngineUnavailable", "LeaseEnded", "new_transfer"]

T = TypeVar("T")


class EngineCallError(Exception):
    """A call to an engine failed; the message names engine and cause."""


class EngineUnavailable(EngineCallError):
    """The engine is not there, did not answer in time, or is loading or draining."""


class EngineBusy(EngineCallError):
    """All front-end places of the engine are taken."""


class LeaseEnded(EngineCallError):
    """The engine does not know the lease (any more): attach anew."""


_ERRORS: dict[grpc.StatusCode, type[EngineCallError]] = {
    grpc.StatusCode.UNAVAILABLE: EngineUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: EngineUnavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: EngineBusy,
    grpc.StatusCode.NOT_FOUND: LeaseEnded,
}


class EngineClient:
    """One engine at `address` (host:port). Connects when first called; reconnects by itself.

    Every call has a deadline and raises an EngineCallError.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = rpc.channel(address)
        self._stub = engine_pb2_grpc.EngineStub(self._channel)

    async def attach(self, front_end_id: str, timeout_s: float = rpc.DEADLINE_S) -> engine_pb2.RingLease:
        """Leases a share of the ring. Raises EngineBusy or EngineUnavailable."""
        request = engine_pb2.AttachRequest(front_end_id=front_end_id)
        lease: engine_pb2.RingLease = await self._answer(self._stub.Attach(request, timeout=timeout_s))
        return lease

    async def renew(self, lease_id: int, timeout_s: float = rpc.DEADLINE_S) -> float:
        """Answers the seconds that the lease lasts, counted from before the call. Raises LeaseEnded."""
        request = engine_pb2.RenewRequest(lease_id=lease_id)
        reply: engine_pb2.RenewReply = await self._answer(self._stub.Renew(request, timeout=timeout_s))
        return float(reply.ttl_ms) / 1000

    async def detach(self, lease_id: int, timeout_s: float = rpc.DEADLINE_S) -> None:
        """Ends a lease; what is unfinished is cancelled. Raises LeaseEnded if it has ended already."""
        await self._answer(self._stub.Detach(engine_pb2.DetachRequest(lease_id=lease_id), timeout=timeout_s))

    async def drain(self, timeout_s: float) -> int:
        """No new requests; answers how many were still unfinished at the deadline."""
        reply: engine_pb2.DrainReply = await self._answer(
            self._stub.Drain(engine_pb2.DrainRequest(), timeout=timeout_s)
        )
        return int(reply.unfinished)

    async def change_role(self, role: Role, timeout_s: float) -> engine_pb2.ChangeRoleReply:
        """Requests come by the new role from now on. Answers when those under way have ended, or at the deadline.

        Raises EngineCallError if the engine can't take the role."""
        request = engine_pb2.ChangeRoleRequest(role=role)
        reply: engine_pb2.ChangeRoleReply = await self._answer(self._stub.ChangeRole(request, timeout=timeout_s))
        return reply

    async def close(self) -> None:
        await self._channel.close()

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            kind = _ERRORS.get(error.code(), EngineCallError)
            raise kind(f"engine {self.address}: {error.code().name}: {error.details()}") from error
