"""The gRPC Engine service: leases of ring places, and draining. No call of it is on the token path (B7)."""

import logging
from typing import Any

import grpc

from hostless.v1 import engine_pb2 as pb
from hostless.v1 import engine_pb2_grpc
from services.gpu_backend.backend import Backend, NotServing, RoleRefused
from services.gpu_backend.kv_agent.buffer_place import reply_of
from services.gpu_backend.kv_agent.inbound import UnknownTransfer
from services.gpu_backend.kv_agent.receiver import Receiver
from services.gpu_backend.leases import Lease, LeaseEnded, NoPlace

NAME = "hostless.v1.Engine"
TRANSFERS = "hostless.v1.KvTransfers"

Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)


class EngineService(engine_pb2_grpc.EngineServicer):  # type: ignore[misc]
    """Refuses with UNAVAILABLE until `backend` is set, that is while the engine loads."""

    def __init__(self) -> None:
        self.backend: Backend | None = None

    def register(self, server: grpc.aio.Server) -> None:
        engine_pb2_grpc.add_EngineServicer_to_server(self, server)
        engine_pb2_grpc.add_KvTransfersServicer_to_server(KvTransfersService(self), server)

    async def Attach(self, request: pb.AttachRequest, context: Context) -> pb.RingLease:
        backend = await self._loaded(context)
        try:
            lease = backend.attach(request.front_end_id)
        except NotServing as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except NoPlace as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        log.info("front end attached", extra=_told(lease))
        return self._ring_lease(backend, lease)

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewReply:
        backend = await self._loaded(context)
        try:
            backend.leases.renew(request.lease_id)
        except LeaseEnded as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return pb.RenewReply(ttl_ms=_ttl_ms(backend))

    async def Detach(self, request: pb.DetachRequest, context: Context) -> pb.DetachReply:
        (await self._loaded(context)).leases.detach(request.lease_id)
        return pb.DetachReply()

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:
        """For good: the engine accepts nothing more until its process starts anew."""
        backend = await self._loaded(context)
        left_s = context.time_remaining()
        unfinished = await backend.drain(backend.settings.drain_s if left_s is None else left_s * 0.9)
        return pb.DrainReply(unfinished=unfinished)

    async def ChangeRole(self, request: pb.ChangeRoleRequest, context: Context) -> pb.ChangeRoleReply:
        backend = await self._loaded(context)
        left_s = context.time_remaining()
        wait_s = backend.settings.drain_s if left_s is None else left_s * 0.9
        try:
            unfinished, announced = await backend.change_role(request.role, wait_s)
        except RoleRefused as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.ChangeRoleReply(unfinished=unfinished, announced=announced)

    async def _loaded(self, context: Context) -> Backend:
        if self.backend is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is loading its model; try again")
        assert self.backend
        return self.backend

    def _ring_lease(self, backend: Backend, lease: Lease) -> pb.RingLease:
        share = lease.share
        return pb.RingLease(
            lease_id=lease.lease_id,
            ttl_ms=_ttl_ms(backend),
            ring=backend.region.descriptor(),
            front_end=share.front_end,
            slot_begin=share.slot_begin,
            slot_count=share.slot_count,
            prompt_begin=share.prompt_begin,
            prompt_count=share.prompt_count,
            token_begin=share.token_begin,
            token_count=share.token_count,
        )


class KvTransfersService(engine_pb2_grpc.KvTransfersServicer):  # type: ignore[misc]
    """The calls of prefill engines that hand prompts over to this one (D1-D3)."""

    def __init__(self, engine: EngineService) -> None:
        self._engine = engine

    async def Open(self, request: pb.OpenTransferRequest, context: Context) -> pb.OpenTransferReply:
        receiver = await self._receiver(context)
        try:
            place, hit = await receiver.open(request.transfer, request.block_bytes, request.machine)
        except UnknownTransfer as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except OSError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return reply_of(place, hit)

    async def Finish(self, request: pb.FinishTransferRequest, context: Context) -> pb.FinishTransferReply:
        receiver = await self._receiver(context)
        try:
            receiver.finish(request.transfer, request.first_token)
        except UnknownTransfer as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return pb.FinishTransferReply()

    async def _receiver(self, context: Context) -> Receiver:
        backend = self._engine.backend
        if backend is None or backend.kv_link is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this engine takes no prompts from others")
        assert backend
        assert backend.kv_link
        return backend.kv_link.agent.receiver


def _ttl_ms(backend: Backend) -> int:
    return int(backend.leases.ttl_s * 1000)


def _told(lease: Lease) -> dict[str, object]:
    return {"front_end": lease.front_end_id, "place": lease.share.front_end, "lease_id": lease.lease_id}
