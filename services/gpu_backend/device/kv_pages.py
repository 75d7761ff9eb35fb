"""KV pages in the GPU's memory, for the KV agent (kv_agent/pages.py): moved by its copy engines alone (D7).

Nothing here waits for the whole device, so a scheduler that never leaves it is no hindrance; and nothing here is a
kernel, which would take multiprocessors from steps. Everything is allocated before the scheduler starts.
"""

import asyncio
import contextlib

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.device import driver
from services.gpu_backend.device.driver import Device, MappedMemory, Stream


class Lane:
    """One direction: a stream of its own and a pinned buffer of one page. Copies one at a time."""

    def __init__(self, device: Device, block_bytes: int) -> None:
        self._device = device
        self.lock = asyncio.Lock()
        self.stream = Stream()
        self.buffer = MappedMemory(block_bytes)

    async def landed(self) -> None:
        """Returns when the copy on its way is done, also when it is cancelled: then at once thereafter."""
        try:
            while True:
                self._device.use()
                if self.stream.done():
                    return
                await asyncio.sleep(0)  # a page takes some tens to hundreds of microseconds
        except asyncio.CancelledError:
            self._device.use()
            self.stream.wait()
            raise

    def close(self) -> None:
        self.stream.close()
        self.buffer.close()


class DevicePages:
    """`Pages` of one pool: pages one behind the other from `address` on. Raises CudaError where the GPU fails."""

    def __init__(self, device: Device, address: int, pages: int, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._device, self._address, self._pages = device, address, pages
        with contextlib.ExitStack() as held:
            self._out = held.enter_context(contextlib.closing(Lane(device, block_bytes)))
            self._in = held.enter_context(contextlib.closing(Lane(device, block_bytes)))
            self._held = held.pop_all()

    async def read(self, page: int) -> NDArray[np.uint8]:
        async with self._out.lock:
            self._device.use()
            driver.fetch(self._out.buffer.view, self._at(page), self._out.stream)
            await self._out.landed()
            return self._out.buffer.view

    async def write(self, page: int, block: NDArray[np.uint8]) -> None:
        async with self._in.lock:
            self._in.buffer.view[:] = block
            self._device.use()
            driver.send(self._at(page), self._in.buffer.view, self._in.stream)
            await self._in.landed()

    def _at(self, page: int) -> int:
        if not 0 <= page < self._pages:
            raise IndexError(f"page {page} of {self._pages}")
        return self._address + page * self.block_bytes

    def close(self) -> None:
        """After the agent has ended."""
        self._device.use()
        self._held.close()
