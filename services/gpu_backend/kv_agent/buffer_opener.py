"""Opens decode engines' buffers: what outlives a prompt once, and in host memory where GPUs can't be reached."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import numpy as np

from services.fabric.errors import FabricError
from services.fabric.gate import GateKey, this_machine
from services.fabric.remote_region import RemoteRegion
from services.fabric.rights import Rights, permit
from services.fabric.transports import open_region
from services.gpu_backend.cancellation import all_over
from services.gpu_backend.kv_agent.arenas import PeerPages
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.device_buffer import DeviceBuffer
from services.gpu_backend.kv_agent.pages import Pages
from services.gpu_backend.kv_agent.prompt_buffer import PromptBuffer
from services.gpu_backend.kv_agent.remote_buffer import RemoteBuffer
from services.gpu_backend.transfers import decoder_number

log = logging.getLogger(__name__)

Ask = Callable[[int, int, str], Awaitable[tuple[BufferPlace, range]]]
"""DecodeSide.open."""


class BufferOpener:
    """Verbs: open, close. Arenas stay open, and pinned, until `close`, or until their owner has ended them."""

    def __init__(self, kv_pages: Pages, layers: int) -> None:
        self._kv_pages, self._layers = kv_pages, layers
        self._arenas: dict[tuple[str, int], RemoteRegion] = {}
        self._refused: set[int] = set()  # decode engines whose GPU is not reached; a restarted one has another number
        self._opening = asyncio.Lock()

    async def open(self, transfer: int, ask: Ask) -> tuple[PromptBuffer, range]:
        """And which blocks of the hit are in it. Raises FabricError, OSError, and what `ask` raises."""
        number, block_bytes = decoder_number(transfer), self._kv_pages.block_bytes
        reaches = isinstance(self._kv_pages, PeerPages) and number not in self._refused
        place, hit = await ask(transfer, block_bytes, this_machine() if reaches else "")
        if place.on_device:
            try:
                address = await self._reach(place)
            except OSError as error:
                log.warning(
                    "a decode engine's GPU can't be reached: KV goes by host memory", extra={"why": repr(error)}
                )
                self._refused.add(number)
                place, hit = await ask(transfer, block_bytes, "")
            else:
                self._check(place, hit)
                return self._on_device(place, address), hit
        self._check(place, hit)
        async with self._opening:
            making = asyncio.ensure_future(asyncio.to_thread(self._in_a_region, place))
            try:
                await all_over([making])
            except asyncio.CancelledError:
                if not making.exception():
                    await making.result().close()
                raise
            return making.result(), hit

    def close(self) -> None:
        """Nothing is being moved any more. Idempotent."""
        for arena in self._arenas.values():
            if (mapped := arena.mapped()) is not None:
                self._kv_pages.unpin(np.frombuffer(mapped, np.uint8))
            arena.close()
        self._arenas.clear()

    def _check(self, place: BufferPlace, hit: range) -> None:
        """What the other side says of itself. Raises OSError."""
        end = place.first_byte + place.blocks * self._kv_pages.block_bytes
        if place.blocks < 1 or end > place.region.length or hit.stop > place.blocks:
            raise OSError(
                f"no buffer: {place.blocks} blocks from byte {place.first_byte} of {place.region.length}, {hit} read"
            )

    async def _reach(self, place: BufferPlace) -> int:
        """The address here of memory of a GPU. Raises OSError."""
        pages = self._kv_pages
        if not isinstance(pages, PeerPages):
            raise OSError("these pages are not in a GPU's memory")
        try:
            handle = bytes.fromhex(place.region.address)
        except ValueError as error:
            raise OSError(f"{place.region.address!r} is no handle") from error
        return await asyncio.to_thread(pages.reach, handle)

    def _on_device(self, place: BufferPlace, address: int) -> PromptBuffer:
        assert isinstance(self._kv_pages, PeerPages)
        if place.gate is None:
            raise OSError("a buffer in memory that outlives it has no gate")
        return DeviceBuffer(self._kv_pages, address + place.first_byte, place.blocks, GateKey(place.gate))

    def _in_a_region(self, place: BufferPlace) -> PromptBuffer:
        block_bytes = self._kv_pages.block_bytes
        permit(place.region.address, int(place.region.rights), Rights.READ | Rights.WRITE)
        if place.gate is None:
            return RemoteBuffer(open_region(place.region), place, self._layers, block_bytes)
        gate = GateKey(place.gate)
        try:
            return RemoteBuffer(self._arena(place), place, self._layers, block_bytes, gate)
        except BaseException:
            gate.close()
            raise

    def _arena(self, place: BufferPlace) -> RemoteRegion:
        self._forget_ended()
        key = place.region.address, place.region.generation
        if (arena := self._arenas.get(key)) is None:
            arena = self._arenas[key] = open_region(place.region)
            if (mapped := arena.mapped()) is not None:
                self._kv_pages.pin(np.frombuffer(mapped, np.uint8))
        return arena

    def _forget_ended(self) -> None:
        """What is pinned of them stays so: somebody may be moving to it still, and beside a scheduler on the GPU nobody
        can let go of it."""
        for key, arena in list(self._arenas.items()):
            try:
                arena.verify()
            except FabricError:
                del self._arenas[key]
                arena.close()
