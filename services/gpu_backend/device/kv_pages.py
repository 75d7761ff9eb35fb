"""KV pages in the GPU's memory, for the KV agent (kv_agent/pages.py): moved by its copy engines alone (D7).

Nothing here waits for the whole device, so a scheduler that never leaves it is no hindrance; and nothing here is a
kernel of ours, which would take multiprocessors from steps (inside one GPU the driver's copies may do so all the same).
Everything is allocated before the scheduler starts.
"""

import contextlib
import logging
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.device import driver
from services.gpu_backend.device.copies import Channel, Pinned, Rows
from services.gpu_backend.device.driver import CudaError, Device

log = logging.getLogger(__name__)

_SHARED_HERE: dict[bytes, int] = {}
"""Handles of this process's own memory, which CUDA opens in other processes only, and its addresses."""


class DevicePages:
    """`LayerPages` of one pool: pages one behind the other from `address` on. Raises CudaError where the GPU fails."""

    def __init__(
        self,
        device: Device,
        address: int,
        pages: int,
        block_bytes: int,
        layers: int = 1,
        free: Callable[[], bool] = lambda: True,
    ) -> None:
        """free: no scheduler lives on the device, which has to be so now, and at `close`."""
        self.block_bytes = block_bytes
        self.layers = self.resident = layers
        self._device, self._address, self._pages = device, address, pages
        self._layer_bytes = block_bytes // layers
        self._pinned = Pinned(device, free)
        self._reached: dict[bytes, int] = {}
        self._reaching = threading.Lock()
        with contextlib.ExitStack() as held:
            held.callback(self._pinned.close)
            self._out = held.enter_context(contextlib.closing(Channel(device, block_bytes, self._pinned)))
            self._in = held.enter_context(contextlib.closing(Channel(device, block_bytes, self._pinned)))
            self._one = np.empty((1, block_bytes), np.uint8)
            self._pinned.add(self._one)
            self._held = held.pop_all()

    async def read(self, page: int) -> NDArray[np.uint8]:
        await self.read_into(np.array([page], np.uint32), self._one)
        block: NDArray[np.uint8] = self._one[0]
        return block

    async def read_into(self, pages: NDArray[np.uint32], into: Rows) -> None:
        await self._out.fetch(into, self._at(pages), self.block_bytes)

    async def write_from(self, pages: NDArray[np.uint32], blocks: Rows) -> None:
        await self._in.send(blocks, self._at(pages), self.block_bytes)

    async def read_layer(self, layer: int, pages: NDArray[np.uint32], into: Rows) -> None:
        await self._out.fetch(into, self._at(pages, layer), self.block_bytes)

    async def write_layer(self, layer: int, pages: NDArray[np.uint32], blocks: Rows) -> None:
        await self._in.send(blocks, self._at(pages, layer), self.block_bytes)

    # --- to and from other memory of GPUs ---

    def share(self, blocks: int) -> "SharedPages":
        """Memory that other processes of this machine can open. Not beside a scheduler. Raises OSError."""
        self._device.use()
        try:
            shared = SharedPages(self._device, driver.allocate(blocks * self.block_bytes), blocks, self.block_bytes)
        except CudaError as error:
            raise OSError(f"the GPU has no {blocks * self.block_bytes} bytes to share: {error}") from error
        self._held.callback(shared.close)
        return shared

    def reach(self, handle: bytes) -> int:
        """The address here of what another process shares. Raises OSError where this GPU can't reach that one's."""
        if (address := _SHARED_HERE.get(handle)) is not None:
            return address
        with self._reaching:
            if handle not in self._reached:
                self._device.use()
                try:
                    self._reached[handle] = driver.open_handle(handle)
                except (CudaError, TypeError, ValueError) as error:
                    raise OSError(f"another process's memory of a GPU can't be opened: {error}") from error
            return self._reached[handle]

    async def push(
        self, first_layer: int, layers: int, pages: NDArray[np.uint32], addresses: NDArray[np.uint64]
    ) -> None:
        """Layers [first_layer, first_layer + layers) of pages[i], in one piece, to GPU memory at addresses[i]."""
        await self._out.within(addresses, self._at(pages, first_layer), layers * self._layer_bytes)

    async def pull(
        self, first_layer: int, layers: int, pages: NDArray[np.uint32], addresses: NDArray[np.uint64]
    ) -> None:
        """As push, the other way."""
        await self._in.within(self._at(pages, first_layer), addresses, layers * self._layer_bytes)

    # --- memory of the host that is moved from and to ---

    def pin(self, memory: Rows) -> None:
        """Where the driver can't, what moves takes the longer way."""
        try:
            self._pinned.add(memory)
        except CudaError as error:
            log.warning("memory can't be pinned", extra={"bytes": memory.nbytes, "why": str(error)})

    def unpin(self, memory: Rows) -> bool:
        return self._pinned.discard(memory)

    def _at(self, pages: NDArray[np.uint32], layer: int = 0) -> NDArray[np.uint64]:
        if len(pages) and int(pages.max()) >= self._pages:
            raise IndexError(f"page {int(pages.max())} of {self._pages}")
        begin = np.uint64(self._address + layer * self._layer_bytes)
        return begin + pages.astype(np.uint64) * np.uint64(self.block_bytes)

    def close(self) -> None:
        """After the agent has ended."""
        self._device.use()
        self._held.close()


class SharedPages(DevicePages):
    """Memory that other processes have open, maybe: it is the end of this one that gives it back."""

    def __init__(self, device: Device, address: int, pages: int, block_bytes: int) -> None:
        super().__init__(device, address, pages, block_bytes)
        self.address = address
        self.handle = driver.handle_of(address)
        _SHARED_HERE[self.handle] = address

    def close(self) -> None:
        _SHARED_HERE.pop(self.handle, None)
        super().close()
