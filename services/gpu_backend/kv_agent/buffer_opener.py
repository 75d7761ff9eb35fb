"""Opens decode engines' buffers: what outlives a prompt once, and in host memory where GPUs can't be reached."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.gate import GateKey, this_machine
from services.fabric.rights import Rights, permit
from services.fabric.transports import open_region
from services.gpu_backend.cancellation import all_over, to_its_end
from services.gpu_backend.kv_agent.arenas import PeerPages
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.device_buffer import DeviceBuffer
from services.gpu_backend.kv_agent.opened_arenas import Lives, OpenedArenas
from services.gpu_backend.kv_agent.pages import Pages
from services.gpu_backend.kv_agent.prompt_buffer import PromptBuffer
from services.gpu_backend.kv_agent.remote_buffer import RemoteBuffer
from services.gpu_backend.transfers import decoder_number

log = logging.getLogger(__name__)

Ask = Callable[[int, int, str], Awaitable[tuple[BufferPlace, range]]]
"""DecodeSide.open."""


class BufferOpener:
    """Verbs: open, let_go, close. Arenas stay open until `close`, or until their owner has ended."""

    def __init__(self, kv_pages: Pages, layers: int, lives: Lives) -> None:
        self._kv_pages, self._layers = kv_pages, layers
        self._arenas = OpenedArenas(kv_pages, lives)
        self._refused: set[int] = set()  # decode engines whose GPU is not reached; a restarted one has another number
        self._opening = asyncio.Lock()

    async def open(self, transfer: int, ask: Ask) -> tuple[PromptBuffer, range]:
        """And which blocks of the hit are in it. Raises FabricError, OSError, and what `ask` raises."""
        number, block_bytes = decoder_number(transfer), self._kv_pages.block_bytes
        reaches = isinstance(self._kv_pages, PeerPages) and number not in self._refused
        place, hit = await ask(transfer, block_bytes, this_machine() if reaches else "")
        if place.on_device:
            try:
                async with self._opening:
                    address = await to_its_end(partial(self._arenas.device, place.region, number))
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
        if place.gate is None:  # maybe behind a network: others are not to wait for it
            return await _made(partial(self._in_a_region, place)), hit
        async with self._opening:
            return await _made(partial(self._in_an_arena, place, place.gate)), hit

    @property
    def left_bytes(self) -> int:
        """As OpenedArenas."""
        return self._arenas.left_bytes

    async def let_go(self) -> None:
        """Of arenas whose owner has ended."""
        async with self._opening:
            await to_its_end(self._arenas.let_go)

    def close(self) -> None:
        """Nothing is being moved any more. Idempotent."""
        self._arenas.close()

    def _check(self, place: BufferPlace, hit: range) -> None:
        """What the other side says of itself. Raises OSError."""
        end = place.first_byte + place.blocks * self._kv_pages.block_bytes
        if place.blocks < 1 or end > place.region.length or hit.stop > place.blocks:
            raise OSError(
                f"no buffer: {place.blocks} blocks from byte {place.first_byte} of {place.region.length}, {hit} read"
            )

    def _on_device(self, place: BufferPlace, address: int) -> PromptBuffer:
        assert isinstance(self._kv_pages, PeerPages)
        if place.gate is None:
            raise OSError("a buffer in memory that outlives it has no gate")
        return DeviceBuffer(self._kv_pages, address + place.first_byte, place.blocks, GateKey(place.gate))

    def _in_a_region(self, place: BufferPlace) -> PromptBuffer:
        permit(place.region.address, int(place.region.rights), Rights.READ | Rights.WRITE)
        return RemoteBuffer(open_region(place.region), place, self._layers, self._kv_pages.block_bytes)

    def _in_an_arena(self, place: BufferPlace, gate_region: RegionDescriptor) -> PromptBuffer:
        permit(place.region.address, int(place.region.rights), Rights.READ | Rights.WRITE)
        gate = GateKey(gate_region)
        try:
            arena = self._arenas.host(place.region)
            return RemoteBuffer(arena, place, self._layers, self._kv_pages.block_bytes, gate)
        except BaseException:
            gate.close()
            raise


async def _made(work: Callable[[], PromptBuffer]) -> PromptBuffer:
    """On a thread; for a caller that leaves meanwhile it is closed."""
    making = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await all_over([making])
    except asyncio.CancelledError:
        if not making.exception():
            await making.result().close()
        raise
    return making.result()
