"""KV pages as the agent sees them: whole Full Blocks (D5) in and out, wherever they lie."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Pages(Protocol):
    """Of one engine. Called on the agent's event loop; only pages that no step under way names."""

    block_bytes: int

    async def read(self, page: int) -> NDArray[np.uint8]:
        """u8[block_bytes] of a page; the array holds them until the next `read`."""
        ...

    async def write(self, page: int, block: NDArray[np.uint8]) -> None:
        """The page holds the block when this returns; if it is cancelled, the page's content is undefined, and
        nothing is written to it any more.
        """
        ...


class HostPages:
    """Pages in host memory: u8[pages, block_bytes]."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self.block_bytes = memory.shape[1]

    async def read(self, page: int) -> NDArray[np.uint8]:
        block: NDArray[np.uint8] = self._memory[page]
        return block

    async def write(self, page: int, block: NDArray[np.uint8]) -> None:
        self._memory[page] = block
