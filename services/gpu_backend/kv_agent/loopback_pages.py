"""KV pages whose blocks come and go through the process's own network connection (D7).

In front of a GPU, what its copy engines move competes with what the card brings and takes away, and nobody rules who
goes first. A connection that loops back carries the same bytes in the lane of KV, behind the arbiter.
"""

import asyncio
import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from services.fabric.errors import FabricError
from services.fabric.hosting import RegionHost
from services.fabric.operations import TrafficClass
from services.fabric.rights import Rights
from services.fabric.transports import open_region
from services.gpu_backend.kv_agent.pages import Pages, to_its_end

KV = TrafficClass.KV


class LoopbackPages:
    """`Pages` in front of others. Verbs: read, write, close.

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
        self._read = np.empty(self.block_bytes, np.uint8)
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()

    async def read(self, page: int) -> NDArray[np.uint8]:
        """Raises OSError when the connection fails, besides what the pages raise."""
        async with self._reading:
            self._leaving[:] = await self._pages.read(page)
            await _whole(lambda: self._way.read_into(0, self._read, KV))
            return self._read

    async def write(self, page: int, block: NDArray[np.uint8]) -> None:
        """As read."""
        async with self._writing:
            await _whole(lambda: self._way.write(self.block_bytes, block, KV))
            await self._pages.write(page, self._entering)

    def close(self) -> None:
        """Idempotent. Nobody reads or writes any more."""
        self._way.close()
        self._region.close()


async def _whole(work: Callable[[], None]) -> None:
    try:
        await to_its_end(work)
    except FabricError as error:
        raise OSError(f"the loopback connection of KV pages: {error}") from error
