"""KV pages as the agent sees them: Full Blocks and Layer Blocks (D5) in and out, wherever they lie."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Blocks = NDArray[np.uint8]


class Pages(Protocol):
    """Of one engine. Called on the agent's event loop; only pages that no step under way names."""

    block_bytes: int

    async def read(self, page: int) -> Blocks:
        """u8[block_bytes] of a page; the array holds them until the next `read`."""
        ...

    async def write(self, page: int, block: Blocks) -> None:
        """The page holds the block when this returns; if it is cancelled, the page's content is undefined, and
        nothing is written to it any more.
        """
        ...


@runtime_checkable
class LayerPages(Pages, Protocol):
    """Pages whose layers can be moved alone, beside a step that does not look at these layers yet, or any more (D6)."""

    layers: int
    resident: int
    """Layers that a page holds at a time: layer n lies where layer n - resident lay. Fewer than `layers`: no `read`
    and no `write`."""

    async def read_layer(self, layer: int, pages: NDArray[np.uint32]) -> Blocks:
        """u8[pages, layer_bytes], the caller's own."""
        ...

    async def write_layer(self, layer: int, pages: NDArray[np.uint32], blocks: Blocks) -> None:
        """From u8[pages, layer_bytes]. As `write`."""
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

    async def write(self, page: int, block: Blocks) -> None:
        self._require_all_layers()
        self._memory[page] = block

    async def read_layer(self, layer: int, pages: NDArray[np.uint32]) -> Blocks:
        found: Blocks = await to_its_end(lambda: self._by_layer[pages, layer % self.resident])
        return found

    async def write_layer(self, layer: int, pages: NDArray[np.uint32], blocks: Blocks) -> None:
        def copy() -> None:
            self._by_layer[pages, layer % self.resident] = blocks

        await to_its_end(copy)

    def _require_all_layers(self) -> None:
        if self.resident < self.layers:
            raise OSError(f"pages hold {self.resident} of {self.layers} layers at a time: there are no whole blocks")


async def to_its_end(work: Callable[[], T]) -> T:
    """On a thread; a caller that is cancelled leaves when the thread has done with the memory."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
