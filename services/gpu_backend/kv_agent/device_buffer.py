"""A prompt's buffer in the memory of a GPU of this machine: copy engines move pages from and to it, past the host."""

from collections.abc import Sequence

import numpy as np

from services.fabric.gate import GateKey
from services.gpu_backend.kv_agent.arenas import Addresses, PeerPages
from services.gpu_backend.kv_agent.pages import Blocks, LayerPages, PageNumbers, Pages
from services.gpu_backend.kv_agent.prompt_buffer import PromptBuffer


class DeviceBuffer(PromptBuffer):
    """Moves only what lies in PeerPages. A copy that is given up is waited for by the pages themselves, and the gate is
    held until then."""

    def __init__(self, kv_pages: PeerPages, address: int, blocks: int, gate: GateKey) -> None:
        """address: here, of the first block."""
        self.blocks = blocks
        self._kv_pages, self._address, self._gate = kv_pages, address, gate
        self._layer_bytes = kv_pages.block_bytes // kv_pages.layers

    async def layer_from_pages(
        self, kv_pages: LayerPages, layer: int, blocks: Sequence[int], pages: PageNumbers
    ) -> None:
        with self._gate.hold():
            await self._kv_pages.push(layer, 1, pages, self._at(blocks, layer))

    async def fetch_layer(self, layer: int, blocks: Sequence[int]) -> Blocks | None:
        return None

    async def layer_to_pages(
        self, kv_pages: LayerPages, layer: int, blocks: Sequence[int], pages: PageNumbers, fetched: Blocks | None
    ) -> None:
        with self._gate.hold():
            await self._kv_pages.pull(layer, 1, pages, self._at(blocks, layer))

    async def blocks_from_pages(self, kv_pages: Pages, blocks: Sequence[int], pages: PageNumbers) -> None:
        with self._gate.hold():
            await self._kv_pages.push(0, self._kv_pages.layers, pages, self._at(blocks, 0))

    async def blocks_to_pages(self, kv_pages: Pages, blocks: Sequence[int], pages: PageNumbers) -> None:
        with self._gate.hold():
            await self._kv_pages.pull(0, self._kv_pages.layers, pages, self._at(blocks, 0))

    async def settled(self) -> None:
        """Always."""

    async def close(self) -> None:
        self._gate.close()

    def _at(self, blocks: Sequence[int], layer: int) -> Addresses:
        if len(blocks) and not 0 <= min(blocks) <= max(blocks) < self.blocks:
            raise IndexError(f"blocks {min(blocks)} to {max(blocks)} of {self.blocks}")
        begin = np.uint64(self._address + layer * self._layer_bytes)
        return begin + np.array(blocks, np.uint64) * np.uint64(self._kv_pages.block_bytes)
