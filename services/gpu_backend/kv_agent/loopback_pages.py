"""KV pages whose blocks come and go through the process's own network connection (D7).

In front of a GPU, what its copy engines move competes with what the card brings and takes away, and nobody rules who
goes first. A connection that loops back carries the same bytes in the lane of KV, behind the arbiter.
"""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from services.fabric.errors import FabricError
from services.fabric.hosting import RegionHost
from services.fabric.operations import TrafficClass
from services.fabric.rights import Rights
from services.fabric.transports import open_region
from services.gpu_backend.cancellation import to_its_end
from services.gpu_backend.kv_agent.pages import Blocks, PageNumbers, Pages

KV = TrafficClass.KV


class LoopbackPages:
    """`Pages` in front of others. Verbs: read, read_into, write_from, close.

    The connection ends at a region of a block each way, from where `pages` takes over by a copy: pages are not
    registered memory themselves yet. So this costs more than it saves, and is for seeing what the way through the
    card does.
    """

    def __init__(self, pages: Pages, regions: RegionHost, name: str) -> None:
        """Raises OSError when there is no memory, FabricError when the way back can't be connected."""
        self.block_bytes = pages.block_bytes
        self._pages = pages
        own = f"copies.{name}.{secrets.token_hex(4)}"
        self._region = regions.create(own, 2 * self.block_bytes, Rights.READ | Rights.WRITE)
        try:
            self._way = open_region(self._region.descriptor())
        except BaseException:
            self._region.close()
            raise
        self._leaving = self._region.view[: self.block_bytes]
        self._entering = self._region.view[self.block_bytes :]
        self._read = np.empty((1, self.block_bytes), np.uint8)
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()

    async def read(self, page: int) -> NDArray[np.uint8]:
        """Raises OSError when the connection fails, besides what the pages raise."""
        await self.read_into(np.array([page], np.uint32), self._read)
        block: NDArray[np.uint8] = self._read[0]
        return block

    async def read_into(self, pages: PageNumbers, into: Blocks) -> None:
        """As read."""
        async with self._reading:
            for page, block in zip(pages.tolist(), into, strict=True):
                self._leaving[:] = await self._pages.read(page)
                await _whole(partial(self._way.read_into, 0, block, KV))

    async def write_from(self, pages: PageNumbers, blocks: Blocks) -> None:
        """As read."""
        async with self._writing:
            for at, block in enumerate(blocks):
                await _whole(partial(self._way.write, self.block_bytes, block, KV))
                await self._pages.write_from(pages[at : at + 1], self._entering[None])

    def pin(self, memory: Blocks) -> None:
        """Nothing: only this object's own memory is near the pages."""

    def unpin(self, memory: Blocks) -> bool:
        return True

    def close(self) -> None:
        """Idempotent. Nobody reads or writes any more."""
        self._way.close()
        self._region.close()


async def _whole(work: Callable[[], None]) -> None:
    try:
        await to_its_end(work)
    except FabricError as error:
        raise OSError(f"the loopback connection of KV pages: {error}") from error
