"""Where a prompt's stored KV lies before it is brought into pages layer by layer (D1, D2)."""

from typing import Protocol

from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.pages import Blocks
from services.gpu_backend.kv_agent.remote_buffer import RemoteBuffer


class Source(Protocol):
    """Has blocks [first, end) of a prompt, all their layers. A hit has one source, or several, a part each (D15)."""

    first: int
    end: int
    link: KvLink

    async def fetch(self, layer: int) -> Blocks:
        """u8[end - first, layer_bytes]. Raises FabricError."""
        ...


class LoadedHere:
    """In this engine's buffer, which the store has written Full Blocks to (D1): u8[blocks, layers, layer_bytes]."""

    link = KvLink.PREFILL_BUFFER_PAGES

    def __init__(self, blocks: Blocks, first: int = 0) -> None:
        self.first, self.end = first, first + len(blocks)
        self._blocks = blocks

    async def fetch(self, layer: int) -> Blocks:
        found: Blocks = self._blocks[:, layer]
        return found


class LoadedThere:
    """In the decode engine's buffer (D2), which has what was read there, and later what was computed here."""

    link = KvLink.DECODE_BUFFER_PREFILL_PAGES

    def __init__(self, buffer: RemoteBuffer, first: int, end: int) -> None:
        self.first, self.end = first, end
        self._buffer = buffer

    async def fetch(self, layer: int) -> Blocks:
        return await self._buffer.read_layer(layer, range(self.first, self.end))

    async def fetch_block(self, block: int) -> Blocks:
        """u8[block_bytes]. Raises FabricError."""
        return await self._buffer.read_block(block)
