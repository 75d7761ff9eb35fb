"""Decode engines as a prefill engine reaches them: by the global scheduler's table of the living (D9)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import grpc

from hostless.v1 import engine_pb2 as pb
from hostless.v1 import engine_pb2_grpc
from hostless.v1.scheduler_pb2 import PlacementTable
from services.common import rpc
from services.gpu_backend.kv_agent.buffer_place import BufferPlace, place_of
from services.gpu_backend.kv_agent.handover import TransferFailed
from services.gpu_backend.transfers import decoder_number, engine_number

T = TypeVar("T")

FINISH_S = 5.0


class Peers:
    """A DecodeSide. `run` it as a task; it closes its channels when it is cancelled."""

    def __init__(self, watch: Callable[[], AsyncGenerator[PlacementTable, None]], wait_s: float, open_s: float) -> None:
        """`wait_s`: for an engine to be in the table. `open_s`: for the decode side to have room and the hit."""
        self._watch, self._wait_s, self._open_s = watch, wait_s, open_s
        self._addresses: dict[int, str] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.changed = asyncio.Event()
        """Set, and replaced, at every new table."""

    async def run(self) -> None:
        try:
            async with aclosing(self._watch()) as tables:
                async for table in tables:
                    await self._take(table)
        finally:
            for channel in self._channels.values():
                await channel.close()

    def lives(self, engine: int) -> bool:
        return engine in self._addresses

    async def open(self, transfer: int, block_bytes: int, machine: str) -> tuple[BufferPlace, range]:
        request = pb.OpenTransferRequest(transfer=transfer, block_bytes=block_bytes, machine=machine)
        return place_of(await self._call((await self._stub(transfer)).Open(request, timeout=self._open_s)))

    async def finish(self, transfer: int, first_token: int) -> None:
        request = pb.FinishTransferRequest(transfer=transfer, first_token=first_token)
        await self._call((await self._stub(transfer)).Finish(request, timeout=FINISH_S))

    async def _take(self, table: PlacementTable) -> None:
        if not table.engines:  # a scheduler that has just begun; who lives is known soon
            return
        self._addresses = {engine_number(info.engine_id, info.epoch): info.address for info in table.engines}
        for address in self._channels.keys() - set(self._addresses.values()):
            await self._channels.pop(address).close()
        self.changed.set()
        self.changed = asyncio.Event()

    async def _stub(self, transfer: int) -> engine_pb2_grpc.KvTransfersStub:
        number = decoder_number(transfer)
        try:
            async with asyncio.timeout(self._wait_s):
                while (address := self._addresses.get(number)) is None:
                    await self.changed.wait()
        except TimeoutError:
            raise TransferFailed(f"no live engine has the number {number:#x}") from None
        if address not in self._channels:
            self._channels[address] = rpc.channel(address)
        return engine_pb2_grpc.KvTransfersStub(self._channels[address])

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise TransferFailed(f"{error.code().name}: {error.details()}") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise TransferFailed("the channel to the decode engine was closed: it is gone") from None
