"""Memory that the buffers of many prompts are parts of: in this host's memory, or in the GPU's.

It is made once, because a region a prompt costs more than its bytes (its pages are new to everybody), and because
memory can be given to a GPU's copy engines beside a scheduler that lives there, but not be taken from them.
"""

import asyncio
import secrets
import time
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.hosting import RegionHost
from services.fabric.rights import Rights
from services.gpu_backend.cancellation import to_its_end
from services.gpu_backend.kv_agent.buffer_place import ON_DEVICE
from services.gpu_backend.kv_agent.pages import Blocks, PageNumbers, Pages

Addresses = NDArray[np.uint64]


class SharedMemory(Protocol):
    """A GPU's memory that processes of the machine can open: u8[blocks, block_bytes]."""

    address: int
    handle: bytes

    async def read_into(self, pages: PageNumbers, into: Blocks) -> None: ...

    async def write_from(self, pages: PageNumbers, blocks: Blocks) -> None: ...


@runtime_checkable
class PeerPages(Pages, Protocol):
    """Pages in a GPU's memory, whose copy engines reach other such memory of the machine. Of what moves, as LayerPages;
    addresses[i] is of `count` layers one behind the other."""

    layers: int

    def share(self, blocks: int) -> SharedMemory:
        """Memory for others to open; until the end of the process. Raises OSError where there isn't enough."""
        ...

    def reach(self, handle: bytes) -> int:
        """The address here of another process's shared memory; blocks. Raises OSError where the GPUs can't reach each
        other."""
        ...

    async def pull(self, first_layer: int, count: int, pages: PageNumbers, addresses: Addresses) -> None:
        """From addresses[i] into layers [first_layer, first_layer + count) of pages[i]."""
        ...

    async def push(self, first_layer: int, count: int, pages: PageNumbers, addresses: Addresses) -> None:
        """The other way."""
        ...


class Arena(Protocol):
    """`at`: of the first byte of Full Blocks that lie one behind the other. Raises OSError, and what pages raise."""

    descriptor: RegionDescriptor

    async def put(self, at: int, blocks: Blocks) -> None:
        """u8[blocks, block_bytes], from anywhere in this process's memory."""
        ...

    async def get(self, at: int, into: Blocks) -> None: ...

    async def to_pages(self, at: int, pages: PageNumbers) -> None: ...

    def view(self, at: int, count: int) -> Blocks | None:
        """Those bytes where this process can touch them in place."""
        ...

    def close(self) -> None:
        """Nothing moves any more. Idempotent."""
        ...


class HostArena:
    """A region of this host's memory."""

    def __init__(self, kv_pages: Pages, regions: RegionHost, name: str, size: int) -> None:
        """Raises OSError."""
        self._kv_pages = kv_pages
        self._region = regions.create(f"{name}.{secrets.token_hex(6)}", size, Rights.READ | Rights.WRITE)
        self._memory = self._region.view
        self.descriptor = self._region.descriptor()
        kv_pages.pin(self._memory)

    async def put(self, at: int, blocks: Blocks) -> None:
        await to_its_end(lambda: np.copyto(self.view(at, len(blocks)), blocks))

    async def get(self, at: int, into: Blocks) -> None:
        await to_its_end(lambda: np.copyto(into, self.view(at, len(into))))

    async def to_pages(self, at: int, pages: PageNumbers) -> None:
        await self._kv_pages.write_from(pages, self.view(at, len(pages)))

    def view(self, at: int, count: int) -> Blocks:
        part: Blocks = self._memory[at : at + count * self._kv_pages.block_bytes]
        return part.reshape(count, self._kv_pages.block_bytes)

    def close(self) -> None:
        self._kv_pages.unpin(self._memory)
        self._region.close()


class DeviceArena:
    """Memory of the GPU that the pages lie in. Copies inside one GPU are so fast that steps beside them starve for
    memory or multiprocessors; so they can be told a rate, and go layer by layer then."""

    def __init__(self, kv_pages: PeerPages, blocks: int, fill_bytes_s: int) -> None:
        """fill_bytes_s: of `to_pages`, at most; 0: as fast as it goes. Raises OSError."""
        self._kv_pages, self._shared, self._rate = kv_pages, kv_pages.share(blocks), fill_bytes_s
        self.descriptor = RegionDescriptor(
            transport=ON_DEVICE, address=self._shared.handle.hex(), length=blocks * kv_pages.block_bytes
        )

    async def put(self, at: int, blocks: Blocks) -> None:
        await self._shared.write_from(self._numbers(at, len(blocks)), blocks)

    async def get(self, at: int, into: Blocks) -> None:
        await self._shared.read_into(self._numbers(at, len(into)), into)

    async def to_pages(self, at: int, pages: PageNumbers) -> None:
        layers, block_bytes = self._kv_pages.layers, self._kv_pages.block_bytes
        blocks = np.arange(len(pages), dtype=np.uint64) * np.uint64(block_bytes) + np.uint64(self._shared.address + at)
        if not self._rate:
            await self._kv_pages.pull(0, layers, pages, blocks)
            return
        layer_s = len(pages) * block_bytes / layers / self._rate
        due = time.monotonic()
        for layer in range(layers):
            await self._kv_pages.pull(layer, 1, pages, blocks + np.uint64(layer * (block_bytes // layers)))
            due += layer_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def view(self, at: int, count: int) -> Blocks | None:
        return None

    def close(self) -> None:
        """Nothing: peers may have it open, and the end of the process gives it back."""

    def _numbers(self, at: int, count: int) -> PageNumbers:
        first = at // self._kv_pages.block_bytes
        return np.arange(first, first + count, dtype=np.uint32)
