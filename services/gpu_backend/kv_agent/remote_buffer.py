"""The decode side's buffer of one prompt, as the prefill side reaches it: Layer Blocks (D5) by one-sided operations."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from services.fabric.errors import StaleRegion
from services.fabric.gate import GateKey
from services.fabric.operations import TrafficClass
from services.fabric.remote_region import RemoteRegion
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.pages import Blocks, LayerPages, PageNumbers, Pages
from services.gpu_backend.kv_agent.prompt_buffer import PromptBuffer

KV = TrafficClass.KV


class RemoteBuffer(PromptBuffer):
    """Where this process maps the buffer, pages are moved from and to it in place; else through memory of their own."""

    def __init__(
        self, region: RemoteRegion, place: BufferPlace, layers: int, block_bytes: int, gate: GateKey | None = None
    ) -> None:
        """With a gate, `region` is others' too, and stays open; else it is this object's to close."""
        self.layers = layers
        self.blocks = place.blocks
        self._region, self._block_bytes, self._layer_bytes = region, block_bytes, block_bytes // layers
        self._first_byte, self._gate = place.first_byte, gate
        self._open = True
        self._moving: set[asyncio.Future[None]] = set()
        mapped = region.mapped()
        self._mapped = None if mapped is None else _by_layers(mapped, place, layers, block_bytes)

    # --- between the buffer and pages ---

    async def layer_from_pages(
        self, kv_pages: LayerPages, layer: int, blocks: Sequence[int], pages: PageNumbers
    ) -> None:
        if (mapped := self._in_place()) is None:
            data = np.empty((len(blocks), self._layer_bytes), np.uint8)
            await kv_pages.read_layer(layer, pages, data)
            await self.write_layer(layer, blocks, data)
            return
        with self._touching():
            for run, first in _runs(blocks):
                await kv_pages.read_layer(layer, pages[run], mapped[first : first + run.stop - run.start, layer])

    async def fetch_layer(self, layer: int, blocks: Sequence[int]) -> Blocks | None:
        return await self.read_layer(layer, blocks) if self._in_place() is None else None

    async def layer_to_pages(
        self, kv_pages: LayerPages, layer: int, blocks: Sequence[int], pages: PageNumbers, fetched: Blocks | None
    ) -> None:
        if (mapped := self._in_place()) is None:
            assert fetched is not None
            await kv_pages.write_layer(layer, pages, fetched)
            return
        with self._touching():
            for run, first in _runs(blocks):
                await kv_pages.write_layer(layer, pages[run], mapped[first : first + run.stop - run.start, layer])

    async def blocks_from_pages(self, kv_pages: Pages, blocks: Sequence[int], pages: PageNumbers) -> None:
        if (mapped := self._in_place()) is None:
            data = np.empty((len(blocks), self._block_bytes), np.uint8)
            await kv_pages.read_into(pages, data)
            await self.write_blocks(blocks, data)
            return
        with self._touching():
            for run, first in _runs(blocks):
                into = mapped[first : first + run.stop - run.start]
                await kv_pages.read_into(pages[run], into.reshape(len(into), -1))

    async def blocks_to_pages(self, kv_pages: Pages, blocks: Sequence[int], pages: PageNumbers) -> None:
        if (mapped := self._in_place()) is None:
            await kv_pages.write_from(pages, await self.read_blocks(blocks))
            return
        with self._touching():
            for run, first in _runs(blocks):
                data = mapped[first : first + run.stop - run.start]
                await kv_pages.write_from(pages[run], data.reshape(len(data), -1))

    # --- between the buffer and other memory ---

    async def read_layer(self, layer: int, blocks: Sequence[int]) -> Blocks:
        """u8[blocks, layer_bytes]."""
        return await self._gather(blocks, [layer])

    async def write_layer(self, layer: int, blocks: Sequence[int], data: Blocks) -> None:
        """From u8[blocks, layer_bytes], which is left alone from then on."""
        await self._scatter(blocks, [layer], data)

    async def read_blocks(self, blocks: Sequence[int]) -> Blocks:
        """u8[blocks, block_bytes]: their layers are pieces of their own, posted together."""
        return await self._gather(blocks, range(self.layers))

    async def write_blocks(self, blocks: Sequence[int], data: Blocks) -> None:
        """As read_blocks, from memory that is left alone from then on."""
        await self._scatter(blocks, range(self.layers), data)

    async def settled(self) -> None:
        if self._moving:
            await asyncio.wait(self._moving)

    async def close(self) -> None:
        """What moves in place still, for another task, goes on to its end; then this keeps nothing mapped."""
        await self.settled()
        self._open, self._mapped = False, None
        if self._gate is not None:
            self._gate.close()
        else:
            self._region.close()

    @contextmanager
    def _touching(self) -> Iterator[None]:
        """Raises FabricError where the right to the buffer has ended, or ends meanwhile."""
        with ExitStack() as held:
            if self._gate is not None:
                held.enter_context(self._gate.hold())
            self._region.verify()
            yield
            self._region.verify()

    def _in_place(self) -> Blocks | None:
        """u8[blocks, layers, layer_bytes] where this process maps it. Raises StaleRegion once this is closed."""
        if not self._open:
            raise StaleRegion("the buffer is closed here")
        return self._mapped

    async def _gather(self, blocks: Sequence[int], layers: Sequence[int]) -> Blocks:
        into = np.empty((len(blocks), len(layers) * self._layer_bytes), np.uint8)
        at = self._places(blocks, layers)
        await self._move(lambda: self._region.gather(at, self._lengths(at), into, KV))
        return into

    async def _scatter(self, blocks: Sequence[int], layers: Sequence[int], data: Blocks) -> None:
        at = self._places(blocks, layers)
        await self._move(lambda: self._region.scatter(at, self._lengths(at), data, KV))

    def _places(self, blocks: Sequence[int], layers: Sequence[int]) -> NDArray[np.uint64]:
        begins = np.array(blocks, np.uint64)[:, None] * np.uint64(self._block_bytes) + np.uint64(self._first_byte)
        return (begins + np.array(layers, np.uint64) * np.uint64(self._layer_bytes)).reshape(-1)

    def _lengths(self, at: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return np.full(len(at), self._layer_bytes, np.uint64)

    def _ended(self, moving: asyncio.Future[None]) -> None:
        self._moving.discard(moving)
        if not moving.cancelled():
            moving.exception()  # what nobody waits for any more may fail

    async def _move(self, work: Callable[[], None]) -> None:
        gate = ExitStack()
        if self._gate is not None:
            gate.enter_context(self._gate.hold())
        moving = asyncio.ensure_future(asyncio.to_thread(work))
        self._moving.add(moving)
        moving.add_done_callback(lambda _: gate.close())
        moving.add_done_callback(self._ended)
        await asyncio.shield(moving)


def _by_layers(mapped: memoryview, place: BufferPlace, layers: int, block_bytes: int) -> Blocks:
    """u8[blocks, layers, layer_bytes]."""
    part = np.frombuffer(mapped, np.uint8, place.blocks * block_bytes, place.first_byte)
    return part.reshape(place.blocks, layers, -1)


def _runs(blocks: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Of blocks one behind the other: where they stand in `blocks`, and the first of them."""
    numbers = np.asarray(blocks, np.int64)
    cuts = (np.flatnonzero(np.diff(numbers) != 1) + 1).tolist()
    for begin, end in zip([0, *cuts], [*cuts, len(numbers)], strict=True):
        if end > begin:
            yield slice(begin, end), int(numbers[begin])
