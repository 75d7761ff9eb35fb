"""The decode side's buffer of one prompt, as the prefill side sees it, wherever it lies."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from services.gpu_backend.kv_agent.pages import Blocks, LayerPages, PageNumbers, Pages


class PromptBuffer(ABC):
    """Full Blocks, moved whole or by Layer Blocks (D5), to and from pages. All calls raise FabricError, and what pages
    raise. What a caller gives up may go on, in memory that is nobody else's; `settled` and `close` wait for that."""

    blocks: int

    @abstractmethod
    async def layer_from_pages(
        self, kv_pages: LayerPages, layer: int, blocks: Sequence[int], pages: PageNumbers
    ) -> None:
        """Layer `layer` of pages[i] into block blocks[i]."""

    @abstractmethod
    async def fetch_layer(self, layer: int, blocks: Sequence[int]) -> Blocks | None:
        """u8[blocks, layer_bytes]: as much of the way to pages as goes ahead; None: no part of it does."""

    @abstractmethod
    async def layer_to_pages(
        self, kv_pages: LayerPages, layer: int, blocks: Sequence[int], pages: PageNumbers, fetched: Blocks | None
    ) -> None:
        """Layer `layer` of block blocks[i], which was fetched, into that of pages[i]."""

    @abstractmethod
    async def blocks_from_pages(self, kv_pages: Pages, blocks: Sequence[int], pages: PageNumbers) -> None:
        """Page pages[i] into block blocks[i]."""

    @abstractmethod
    async def blocks_to_pages(self, kv_pages: Pages, blocks: Sequence[int], pages: PageNumbers) -> None:
        """Block blocks[i] into page pages[i]."""

    @abstractmethod
    async def settled(self) -> None:
        """Nothing of what was given up goes on any more. As long as the transport may take."""

    @abstractmethod
    async def close(self) -> None:
        """Once it has settled. Idempotent."""
