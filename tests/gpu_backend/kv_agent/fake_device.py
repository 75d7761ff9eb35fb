"""Pages that say they lie in a GPU's memory: host memory in truth, moved by address."""

import asyncio
import ctypes

import numpy as np

from services.gpu_backend.kv_agent import HostPages
from services.gpu_backend.kv_agent.arenas import Addresses
from services.gpu_backend.kv_agent.pages import Blocks, PageNumbers

SHARED: dict[bytes, Blocks] = {}


class FakeShared(HostPages):
    def __init__(self, blocks: int, block_bytes: int) -> None:
        self.memory = np.zeros((blocks, block_bytes), np.uint8)
        super().__init__(self.memory)
        self.address = self.memory.ctypes.data
        self.handle = self.address.to_bytes(8, "little")
        SHARED[self.handle] = self.memory


class FakeDevicePages(HostPages):
    """`refuses`: no other GPU can be reached. `go_on`: copies end when it is set."""

    def __init__(self, memory: Blocks, layers: int) -> None:
        super().__init__(memory, layers)
        self.base, self.layer_bytes = memory.ctypes.data, self.block_bytes // layers
        self.refuses = False
        self.shared: FakeShared | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.copies = 0

    def share(self, blocks: int) -> FakeShared:
        self.shared = FakeShared(blocks, self.block_bytes)
        return self.shared

    def reach(self, handle: bytes) -> int:
        if self.refuses:
            raise OSError("peer access is refused")
        address: int = SHARED[handle].ctypes.data
        return address

    async def pull(self, first_layer: int, count: int, pages: PageNumbers, addresses: Addresses) -> None:
        await self._move(first_layer, count, pages, addresses, inward=True)

    async def push(self, first_layer: int, count: int, pages: PageNumbers, addresses: Addresses) -> None:
        await self._move(first_layer, count, pages, addresses, inward=False)

    async def _move(self, first: int, count: int, pages: PageNumbers, addresses: Addresses, inward: bool) -> None:
        self.copies += 1
        await self.go_on.wait()
        for page, there in zip(pages.tolist(), addresses.tolist(), strict=True):
            here = self.base + page * self.block_bytes + first * self.layer_bytes
            to, source = (here, there) if inward else (there, here)
            ctypes.memmove(to, source, count * self.layer_bytes)
