"""Where a ring lies for the GPU (B7): in the host's memory, which it maps, or in its own.

In host memory the front ends of this machine touch it as plain shared memory, and the GPU reads over the bus
only what its watcher polls and what a front end has announced. In the GPU's memory it is meant for a network
card that writes there; tests have a thread that stands in for the card (tests/gpu/scheduler/ring_relay.py).
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.device import driver
from services.gpu_backend.device.driver import RegisteredMemory


class RingMemory(Protocol):
    address: int
    """For the GPU."""
    on_host: bool
    host_view: NDArray[np.uint8]
    """An initialised ring (its header, at least) in host memory, 64-byte aligned."""

    def copy(self) -> NDArray[np.uint8]:
        """All of it as it is now, 64-byte aligned. While no scheduler runs."""
        ...

    def close(self) -> None:
        """The GPU lets go of it. While no scheduler runs."""
        ...


class HostRing:
    """The ring in `view`: mapped by the GPU in place."""

    on_host = True

    def __init__(self, view: NDArray[np.uint8]) -> None:
        self.host_view = view
        self._registered = RegisteredMemory(view)
        self.address = self._registered.address

    def copy(self) -> NDArray[np.uint8]:
        memory = np.empty(len(self.host_view) + 64, np.uint8)
        data = memory[-memory.ctypes.data % 64 :][: len(self.host_view)]
        data[:] = self.host_view
        return data

    def close(self) -> None:
        self._registered.close()


class DeviceRing:
    """A ring in device memory, which begins as a copy of `view`."""

    on_host = False

    def __init__(self, view: NDArray[np.uint8]) -> None:
        self.host_view = view
        self.address = driver.allocate(len(view))
        driver.copy_in(self.address, view)

    def copy(self) -> NDArray[np.uint8]:
        return driver.copy_out(self.address, len(self.host_view))

    def close(self) -> None:
        driver.free(self.address)
