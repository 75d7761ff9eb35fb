"""Rows between host memory and the GPU's, by its copy engines: directly where the host's memory is pinned, else through
pinned buffers, so that one piece crosses the bus while others are copied in host memory.
"""

import asyncio
import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.cancellation import all_over
from services.gpu_backend.device import driver
from services.gpu_backend.device.driver import Device, Event, MappedMemory, RegisteredMemory, Stream

SLOTS = 6
"""Pieces under way at once in each direction."""
PIECE_BYTES = 4 << 20

Rows = NDArray[np.uint8]


class Pinned:
    """Host memory that the GPU's copy engines reach in place. Ending that waits for all that the device does, so it
    happens only while `free` says that no scheduler lives there."""

    def __init__(self, device: Device, free: Callable[[], bool]) -> None:
        self._device, self._free = device, free
        self._held: dict[tuple[int, int], RegisteredMemory] = {}

    def add(self, memory: Rows) -> None:
        """Raises CudaError."""
        self._device.use()
        self._held[_span(memory)] = RegisteredMemory(memory)

    def discard(self, memory: Rows) -> bool:
        """False where it would wait: the memory stays mapped and pinned until `close`."""
        if _span(memory) not in self._held:
            return True
        if not self._free():
            return False
        self._device.use()
        self._held.pop(_span(memory)).close()
        return True

    def holds(self, rows: Rows) -> bool:
        begin, end = _span(rows)
        return any(first <= begin and end <= last for first, last in list(self._held))

    def close(self) -> None:
        self._device.use()
        for registered in self._held.values():
            registered.close()
        self._held.clear()


def _span(memory: Rows) -> tuple[int, int]:
    return np.lib.array_utils.byte_bounds(memory)


class _Slot:
    """Of one piece: a stream, the end of what is on it, and a pinned buffer."""

    def __init__(self, piece_bytes: int) -> None:
        self.stream, self.landed = Stream(), Event()
        self.buffer = MappedMemory(piece_bytes)

    def close(self) -> None:
        self.stream.close()
        self.landed.close()
        self.buffer.close()


class Channel:
    """One direction. Everything is allocated when it is made; nothing in it waits for the whole device. A thread that
    waits for a copy sleeps."""

    def __init__(self, device: Device, row_bytes: int, pinned: Pinned) -> None:
        """row_bytes: of the longest row."""
        self._device, self._pinned = device, pinned
        self._piece_bytes = max(row_bytes, PIECE_BYTES)
        self._slots: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
        self._all = [_Slot(self._piece_bytes) for _ in range(SLOTS)]
        for slot in self._all:
            self._slots.put(slot)
        self._threads = ThreadPoolExecutor(SLOTS, "kv-copies")

    async def fetch(self, rows: Rows, addresses: NDArray[np.uint64], pitch: int) -> None:
        """Device memory at addresses[i] into rows[i]. Addresses that are `pitch` apart make one copy."""
        await self._run([self._threads.submit(self._fetch, *part, pitch) for part in self._parts(rows, addresses)])

    async def send(self, rows: Rows, addresses: NDArray[np.uint64], pitch: int) -> None:
        """As fetch, the other way."""
        await self._run([self._threads.submit(self._send, *part, pitch) for part in self._parts(rows, addresses)])

    async def within(self, to: NDArray[np.uint64], source: NDArray[np.uint64], count: int) -> None:
        """`count` bytes from each source to each `to`, both in GPU memory."""
        await self._run([self._threads.submit(self._within, to, source, count)])

    def close(self) -> None:
        """Nobody calls any more."""
        self._threads.shutdown()
        self._device.use()
        for slot in self._all:
            slot.close()

    def _parts(self, rows: Rows, addresses: NDArray[np.uint64]) -> Iterator[tuple[Rows, NDArray[np.uint64]]]:
        """All rows at once where they are pinned, else as many pieces as can be under way, or more."""
        most = len(rows)
        if not self._pinned.holds(rows):
            most = min(self._piece_bytes // rows.shape[1], -(-len(rows) // SLOTS))
        for first in range(0, len(rows), most or 1):
            yield rows[first : first + most], addresses[first : first + most]

    async def _run(self, moving: Sequence[Future[None]]) -> None:
        """To their end, also when cancelled: what has not begun then never does."""
        waited = [asyncio.wrap_future(each) for each in moving]
        await all_over(waited, lambda: [each.cancel() for each in moving])
        for done in waited:
            done.result()

    @contextlib.contextmanager
    def _slot(self) -> Iterator[_Slot]:
        """On a thread of the channel, of which there are as many as slots."""
        slot = self._slots.get()
        try:
            self._device.use()
            yield slot
        finally:
            self._slots.put(slot)

    def _fetch(self, rows: Rows, addresses: NDArray[np.uint64], pitch: int) -> None:
        with self._slot() as slot:
            direct = self._pinned.holds(rows)
            into = rows if direct else slot.buffer.view[: rows.size].reshape(rows.shape)
            self._copy(slot, into, addresses, pitch, inward=False)
            if not direct:
                rows[:] = into

    def _send(self, rows: Rows, addresses: NDArray[np.uint64], pitch: int) -> None:
        with self._slot() as slot:
            if not self._pinned.holds(rows):
                bounce = slot.buffer.view[: rows.size].reshape(rows.shape)
                bounce[:] = rows
                rows = bounce
            self._copy(slot, rows, addresses, pitch, inward=True)

    def _within(self, to: NDArray[np.uint64], source: NDArray[np.uint64], count: int) -> None:
        with self._slot() as slot:
            driver.copy_within(to, source, count, slot.stream)
            slot.landed.after(slot.stream)

    @staticmethod
    def _copy(slot: _Slot, rows: Rows, addresses: NDArray[np.uint64], pitch: int, inward: bool) -> None:
        """Queued run by run, then waited for."""
        move = driver.send_rows if inward else driver.fetch_rows
        cuts = np.flatnonzero(np.diff(addresses) != pitch) + 1
        for first, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True):
            move(int(addresses[first]), pitch, rows[first:end], slot.stream)
        slot.landed.after(slot.stream)
