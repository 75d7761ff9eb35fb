"""Opens decode engines' buffers: what outlives a prompt once, and in host memory where GPUs can't be reached."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import numpy as np

from services.fabric.errors import FabricError
from services.fabric.gate import GateKey, this_machine
from services.fabric.remote_region import RemoteRegion
from services.fabric.transports import open_region
from services.gpu_backend.kv_agent.arenas import PeerPages
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.device_buffer import DeviceBuffer
from services.gpu_backend.kv_agent.pages import Pages, to_its_end
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
        self._refused: set[int] = set()
        self._opening = asyncio.Lock()

    async def open(self, transfer: int, ask: Ask) -> tuple[PromptBuffer, range]:
        """And which blocks of the hit are in it. Raises FabricError, OSError, and what `ask` raises."""
        number, block_bytes = decoder_number(transfer), self._kv_pages.block_bytes
        reaches = isinstance(self._kv_pages, PeerPages) and number not in self._refused
        place, hit = await ask(transfer, block_bytes, this_machine() if reaches else "")
        if place.on_device:
            try:
                return await self._on_device(place), hit
            except (FabricError, OSError) as error:
                log.warning(
                    "a decode engine's GPU can't be reached: KV goes by host memory", extra={"why": repr(error)}
                )
                self._refused.add(number)
                place, hit = await ask(transfer, block_bytes, "")
        async with self._opening:
            return await to_its_end(lambda: self._in_a_region(place)), hit

    def close(self) -> None:
        """Nothing is being moved any more. Idempotent."""
        for arena in self._arenas.values():
            arena.close()
        self._arenas.clear()

    async def _on_device(self, place: BufferPlace) -> PromptBuffer:
        pages = self._kv_pages
        if not isinstance(pages, PeerPages) or place.gate is None:
            raise OSError("these pages are not in a GPU's memory")
        address = await asyncio.to_thread(pages.reach, bytes.fromhex(place.region.address))
        return DeviceBuffer(pages, address + place.first_byte, place.blocks, GateKey(place.gate))

    def _in_a_region(self, place: BufferPlace) -> PromptBuffer:
        block_bytes = self._kv_pages.block_bytes
        if place.first_byte + place.blocks * block_bytes > place.region.length:
            raise OSError(f"a buffer of {place.blocks} blocks reaches past its region of {place.region.length} bytes")
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
        """What is pinned of them stays so: a GPU on which a scheduler lives can't be told to let go of it."""
        for key, arena in list(self._arenas.items()):
            try:
                arena.verify()
            except FabricError:
                del self._arenas[key]
                arena.close()
