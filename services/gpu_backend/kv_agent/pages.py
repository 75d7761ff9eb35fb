"""KV pages as the agent sees them: Full Blocks and Layer Blocks (D5) in and out, wherever they lie."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.cancellation import to_its_end

Blocks = NDArray[np.uint8]
PageNumbers = NDArray[np.uint32]


class Pages(Protocol):
    """Of one engine. Called on the agent's event loop; only pages that no step under way names.

    What many pages are read into, and written from, are rows of any memory of this process: a row lies in one piece,
    rows may lie apart. If a call is cancelled, the content of what it writes to is undefined, and nothing is written to
    it any more.
    """

    block_bytes: int

    async def read(self, page: int) -> Blocks:
        """u8[block_bytes] of a page; the array holds them until the next `read`."""
        ...

    async def read_into(self, pages: PageNumbers, into: Blocks) -> None:
        """Page pages[i] into into[i]: u8[pages, block_bytes]."""
        ...

    async def write_from(self, pages: PageNumbers, blocks: Blocks) -> None:
        """As read_into, the other way: the pages hold the blocks when this returns."""
        ...

    def pin(self, memory: Blocks) -> None:
        """This memory, in one piece, will be moved from and to often: where that helps, it is made ready. It stays
        where it is until `unpin`."""
        ...

    def unpin(self, memory: Blocks) -> bool:
        """Of what was pinned, or was not. False where that can't be undone yet: then it is at the end of these pages.
        Idempotent."""
        ...


@runtime_checkable
class LayerPages(Pages, Protocol):
    """Pages whose layers can be moved alone, beside a step that does not look at these layers yet, or any more (D6)."""

    layers: int
    resident: int
    """Layers that a page holds at a time: layer n lies where layer n - resident lay. Fewer than `layers`: whole pages
    can be neither read nor written."""

    async def read_layer(self, layer: int, pages: PageNumbers, into: Blocks) -> None:
        """As read_into: u8[pages, layer_bytes]."""
        ...

    async def write_layer(self, layer: int, pages: PageNumbers, blocks: Blocks) -> None:
        """As write_from: u8[pages, layer_bytes]."""
        ...


class HostPages:
    """Pages in host memory: u8[pages, bytes of the resident layers]; resident 0: all layers."""

    def __init__(self, memory: Blocks, layers: int = 1, resident: int = 0) -> None:
        self.layers, self.resident = layers, resident or layers
        self._memory = memory
        self._by_layer = memory.reshape(len(memory), self.resident, -1)
        self.block_bytes = layers * self._by_layer.shape[2]

    async def read(self, page: int) -> Blocks:
        self._require_all_layers()
        block: Blocks = self._memory[page]
        return block

    async def read_into(self, pages: PageNumbers, into: Blocks) -> None:
        self._require_all_layers()
        await to_its_end(lambda: _copy(into, self._memory, pages))

    async def write_from(self, pages: PageNumbers, blocks: Blocks) -> None:
        self._require_all_layers()
        await to_its_end(lambda: _spread(self._memory, pages, blocks))

    async def read_layer(self, layer: int, pages: PageNumbers, into: Blocks) -> None:
        await to_its_end(lambda: _copy(into, self._by_layer[:, layer % self.resident], pages))

    async def write_layer(self, layer: int, pages: PageNumbers, blocks: Blocks) -> None:
        await to_its_end(lambda: _spread(self._by_layer[:, layer % self.resident], pages, blocks))

    def pin(self, memory: Blocks) -> None:
        """Nothing: all memory is alike here."""

    def unpin(self, memory: Blocks) -> bool:
        return True

    def _require_all_layers(self) -> None:
        if self.resident < self.layers:
            raise OSError(f"pages hold {self.resident} of {self.layers} layers at a time: there are no whole blocks")


def _copy(into: Blocks, memory: Blocks, rows: PageNumbers) -> None:
    into[:] = memory[rows]


def _spread(memory: Blocks, rows: PageNumbers, blocks: Blocks) -> None:
    memory[rows] = blocks
