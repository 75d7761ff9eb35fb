"""The reading side: find a chain's longest stored run, lease it, push its blocks into the reader's memory."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.errors import FabricError
from services.fabric.operations import TrafficClass
from services.fabric.remote_region import RemoteRegion
from services.fabric.transports import open_region
from services.kvstore.block import BadBlock, Block
from services.kvstore.disk import Disk
from services.kvstore.leases import Leases


class TooManyLeases(Exception):
    """The store gives no more leases now."""


class _Stopped(Exception):
    """The reader went away, or its lease ended, in the middle of a block."""


@dataclass(slots=True)
class Pushed:
    """What came of a push: `blocks` whole ones, and what went wrong with the next one."""

    blocks: int = 0
    error: Exception | None = None


class Reader:
    """Used on one event loop; files and regions are touched on `threads` threads."""

    def __init__(self, disk: Disk, leases: Leases, threads: int, max_reads: int, max_lease_s: float) -> None:
        self._disk, self._leases = disk, leases
        self._max_reads, self._max_lease_s = max_reads, max_lease_s
        self._reading = 0
        self._threads = ThreadPoolExecutor(threads, "kvstore-read")

    def lookup(self, keys: list[bytes], ttl_s: float) -> tuple[int, int, float]:
        """Keys hit from the first, lease id (0: none) and the lease's time. Raises TooManyLeases."""
        now = time.monotonic()
        self._leases.expire(now)
        found = [block.key for block in self._disk.index.run(keys)]
        counters = self._disk.counters
        counters.lookups, counters.keys_asked = counters.lookups + 1, counters.keys_asked + len(keys)
        counters.keys_hit += len(found)
        if not found or ttl_s <= 0:
            return len(found), 0, 0.0
        if self._leases.full:
            raise TooManyLeases("all leases are taken; ask again later, or look up without a lease")
        ttl_s = min(ttl_s, self._max_lease_s)
        return len(found), self._leases.grant(found, ttl_s, now), ttl_s

    def release(self, lease_id: int) -> None:
        self._leases.release(lease_id)

    async def read(
        self, lease_id: int, first: int, count: int, block_bytes: int, target: RegionDescriptor, offset: int
    ) -> tuple[int, str]:
        """Blocks pushed whole and verified under a lease that held throughout, and why not all.

        What lies in the target behind those blocks is undefined.
        """
        lease = self._leases.get(lease_id, time.monotonic())
        if lease is None:
            return 0, "the lease has ended, or is none of this store"
        blocks = [entry.block for entry in lease.entries[first : first + count]]
        if len(blocks) < count:
            return 0, f"blocks {first} to {first + count} of a lease of {len(lease.entries)}"
        if wrong := next((block for block in blocks if block.length != block_bytes), None):
            return 0, f"a block has {wrong.length} bytes, the reader expects {block_bytes}"
        if self._reading >= self._max_reads:
            return 0, "busy"
        pushed = await self._in_thread(
            lambda stop: _push(
                self._disk, blocks, target, offset, lambda: stop.is_set() or time.monotonic() > lease.ends
            )
        )
        if isinstance(pushed.error, BadBlock):
            await self._disk.lose(blocks[pushed.blocks], pushed.error)
        if self._leases.get(lease_id, time.monotonic()) is not lease:
            return 0, "the lease ended during the read"
        self._disk.counters.blocks_read += pushed.blocks
        return pushed.blocks, str(pushed.error or "")

    def close(self) -> None:
        self._threads.shutdown()

    async def _in_thread(self, work: Callable[[threading.Event], Pushed]) -> Pushed:
        """A caller that is cancelled makes its thread stop at the next piece."""
        stop = threading.Event()
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, stop)
        self._reading += 1
        future.add_done_callback(self._finished)
        try:
            return await asyncio.shield(future)
        finally:
            stop.set()

    def _finished(self, future: asyncio.Future[Pushed]) -> None:
        self._reading -= 1


def _push(
    disk: Disk, blocks: list[Block], target: RegionDescriptor, offset: int, stopped: Callable[[], bool]
) -> Pushed:
    """Reads, verifies and writes in one pass over each block. Runs on a thread; raises nothing."""
    pushed = Pushed()
    try:
        region = open_region(target)
    except FabricError as error:
        pushed.error = error
        return pushed
    try:
        for block in blocks:
            disk.engine.load(block, _Into(region, offset, stopped))
            offset += block.length
            pushed.blocks += 1
    except (BadBlock, OSError, FabricError, _Stopped) as error:
        pushed.error = error
    finally:
        region.close()
    return pushed


class _Into:
    """A sink that writes a block's pieces to its place in the region."""

    def __init__(self, region: RemoteRegion, offset: int, stopped: Callable[[], bool]) -> None:
        self._region, self._offset, self._stopped = region, offset, stopped

    def __call__(self, at: int, piece: memoryview) -> None:
        if self._stopped():
            raise _Stopped("stopped by the reader, or its lease ended")
        self._region.write(self._offset + at, piece, TrafficClass.KV)
