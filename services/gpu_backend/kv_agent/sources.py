"""Where a prompt's stored KV lies before it is brought into pages layer by layer (D1, D2)."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from services.gpu_backend.kv_agent.held import Run
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.pages import Blocks, LayerPages, PageNumbers, Pages
from services.gpu_backend.kv_agent.prompt_buffer import PromptBuffer


class Source(Protocol):
    """Has blocks [first, end) of a prompt, all their layers. A hit has one source, or several, a part each (D15)."""

    first: int
    end: int
    link: KvLink

    async def fetch(self, layer: int) -> Blocks | None:
        """u8[end - first, layer_bytes]: as much of the way as goes ahead; None: none does. Raises FabricError."""
        ...

    async def write(self, layer: int, fetched: Blocks | None, kv_pages: LayerPages, pages: PageNumbers) -> None:
        """The rest of the way, into pages[end - first]. Raises FabricError, and what pages raise."""
        ...


class _InHostMemory:
    """What is fetched lies in this process's memory."""

    async def write(self, layer: int, fetched: Blocks | None, kv_pages: LayerPages, pages: PageNumbers) -> None:
        assert fetched is not None
        await kv_pages.write_layer(layer, pages, fetched)


class LoadedHere(_InHostMemory):
    """In this engine's buffer, which the store has written Full Blocks to (D1): u8[blocks, layers, layer_bytes]."""

    link = KvLink.PREFILL_BUFFER_PAGES

    def __init__(self, blocks: Blocks, first: int = 0) -> None:
        self.first, self.end = first, first + len(blocks)
        self._blocks = blocks

    async def fetch(self, layer: int) -> Blocks:
        found: Blocks = self._blocks[:, layer]
        return found


class HeldHere(_InHostMemory):
    """Blocks that this engine still holds: a prompt's first ones. Pinned by whoever made this."""

    link = KvLink.HELD_PREFILL_PAGES
    first = 0

    def __init__(self, run: Run, layers: int) -> None:
        self.end = len(run)
        self._run, self._layers = run, layers

    async def fetch(self, layer: int) -> Blocks:
        return await asyncio.to_thread(self._run.layer, layer, self._layers)


class LoadedThere:
    """In the decode engine's buffer (D2), which has what was read there, and later what was computed here."""

    link = KvLink.DECODE_BUFFER_PREFILL_PAGES

    def __init__(self, buffer: PromptBuffer, first: int, end: int) -> None:
        self.first, self.end = first, end
        self._buffer = buffer

    async def fetch(self, layer: int) -> Blocks | None:
        return await self._buffer.fetch_layer(layer, range(self.first, self.end))

    async def write(self, layer: int, fetched: Blocks | None, kv_pages: LayerPages, pages: PageNumbers) -> None:
        await self._buffer.layer_to_pages(kv_pages, layer, range(self.first, self.end), pages, fetched)

    async def bring_blocks(self, kv_pages: Pages, blocks: Sequence[int], pages: PageNumbers) -> None:
        """All layers of some blocks, into pages[blocks]. Raises FabricError, and what pages raise."""
        await self._buffer.blocks_to_pages(kv_pages, blocks, pages)
