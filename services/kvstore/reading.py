"""The reading side: find a chain's longest stored run, lease it, bring its blocks into the reader's memory."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.common.keys import BLOCK_TOKENS, KEY_BYTES
from services.fabric.errors import FabricError, OutOfBounds
from services.fabric.operations import TrafficClass
from services.fabric.remote_region import RemoteRegion
from services.kvstore.block import BadBlock, Stored
from services.kvstore.disk import Disk
from services.kvstore.engines import Read
from services.kvstore.leases import Leases
from services.kvstore.regions import Regions

BATCH_BYTES = 64 << 20
"""Of one load: many blocks at once keep the disk busy, and between two loads a read can be stopped."""


class TooManyLeases(Exception):
    """The store gives no more leases now."""


class _Stopped(Exception):
    """The reader went away, or its lease ended, in the middle of a read."""


@dataclass(frozen=True, slots=True)
class Found:
    """`hit` keys from the first are stored; lease_id 0: no lease."""

    hit: int
    lease_id: int = 0
    ttl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Slice:
    """What of each block, and where it goes: block i of a read to `offset` + i * `stride`. `length` bytes, or all."""

    offset: int
    stride: int = 0
    begin: int = 0
    length: int = 0

    def fault(self, block_bytes: int) -> str:
        """Why this can't be read of blocks of so many bytes; empty when it can."""
        if self.begin + self.length > block_bytes:
            return f"bytes {self.begin} to {self.begin + self.length} of blocks of {block_bytes}"
        if self.begin and not self.length:
            return f"a slice from byte {self.begin} of 0 bytes; whole blocks begin at 0"
        if 0 < self.stride < (self.length or block_bytes):
            return f"slices of {self.length or block_bytes} bytes, {self.stride} apart, would overlap"
        return ""


@dataclass(slots=True)
class _Pushed:
    """What came of a push: `blocks` whole slices, and what went wrong with the next one."""

    blocks: int = 0
    error: Exception | None = None


class Reader:
    """Used on one event loop; disk and regions are touched on `threads` threads."""

    def __init__(self, disk: Disk, leases: Leases, threads: int, max_reads: int, max_lease_s: float) -> None:
        self._disk, self._leases = disk, leases
        self._max_reads, self._max_lease_s = max_reads, max_lease_s
        self._reading = 0
        self._regions = Regions(disk.engine)
        self._threads = ThreadPoolExecutor(threads, "kvstore-read")
        self.queue_tokens = 0
        """Tokens of blocks that are being read, or wait for it (read_q of D9)."""
        self.draining = False

    async def lookup(self, keys: bytes, ttl_s: float) -> Found:
        """`keys` are 16 bytes each. Raises TooManyLeases."""
        found = self.look(keys, ttl_s)
        asked = len(keys) // KEY_BYTES
        if self._disk.engine.shared and found.hit < asked and not self.draining:
            rest = [keys[at : at + KEY_BYTES] for at in range(found.hit * KEY_BYTES, len(keys), KEY_BYTES)]
            others = await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: self._disk.engine.find(rest)
            )
            if others:
                await self._disk.adopt(others)
                self._leases.release(found.lease_id)
                found = self.look(keys, ttl_s)
        self.count(keys, found.hit)
        return found

    def count(self, keys: bytes, hit: int) -> None:
        counters = self._disk.counters
        counters.lookups += 1
        counters.keys_asked += len(keys) // KEY_BYTES
        counters.keys_hit += hit

    def look(self, keys: bytes, ttl_s: float) -> Found:
        """What the index alone knows."""
        now = time.monotonic()
        self._leases.expire(now)
        if self.draining:
            return Found(0)
        if ttl_s <= 0:
            return Found(self._disk.index.hit(keys))
        if self._leases.full:
            raise TooManyLeases("all leases are taken; ask again later, or look up without a lease")
        ttl_s = min(ttl_s, self._max_lease_s)
        lease_id, hit = self._leases.grant(keys, ttl_s, now)
        return Found(hit, lease_id, ttl_s if lease_id else 0.0)

    def release(self, lease_id: int) -> None:
        self._leases.release(lease_id)

    async def read(
        self, lease_id: int, first: int, count: int, block_bytes: int, target: RegionDescriptor, part: Slice
    ) -> tuple[int, str]:
        """Blocks brought whole and verified under a lease that held throughout, and why not all.

        What lies in the target behind those blocks is undefined.
        """
        lease = self._leases.get(lease_id, time.monotonic())
        if lease is None:
            return 0, "the lease has ended, or is none of this store"
        if first + count > lease.count:
            return 0, f"blocks {first} to {first + count} of a lease of {lease.count}"
        if fault := part.fault(block_bytes):
            return 0, fault
        entries = self._disk.index.pinned(lease.pins, first, count)
        blocks = [Stored(*entry) for entry in entries[: entries.index(None) if None in entries else count] if entry]
        if wrong := next((block for block in blocks if block.length != block_bytes), None):
            return 0, f"a block has {wrong.length} bytes, the reader expects {block_bytes}"
        if self._reading >= self._max_reads:
            return 0, "busy"
        pushed = await self._in_thread(
            count,
            lambda stop: self._push(blocks, target, part, lambda: stop.is_set() or time.monotonic() > lease.ends),
        )
        if self._leases.get(lease_id, time.monotonic()) is not lease:
            return 0, "the lease ended during the read"
        if isinstance(pushed.error, BadBlock):
            await self.verify([blocks[pushed.blocks]])  # in our own memory: a reader may have scribbled in its
        self._disk.counters.blocks_read += pushed.blocks
        self._disk.counters.bytes_read += pushed.blocks * (part.length or block_bytes)
        if pushed.error is None and len(blocks) < count:
            return pushed.blocks, "a block is lost"
        return pushed.blocks, str(pushed.error or "")

    async def verify(self, blocks: Sequence[Stored]) -> list[Stored]:
        """Reads blocks for their checksums alone; returns those that are broken, which are dropped."""
        index = self._disk.index
        pins = [index.pin_run(block.key) for block in blocks]
        there = [block for block, pin in zip(blocks, pins, strict=True) if pin]

        def load() -> list[Exception | None]:
            scratch = memoryview(bytearray(max((block.length for block in there), default=0)))
            return [
                self._disk.engine.load([Read(block.key, block.length, 0, scratch[: block.length])])[0]
                for block in there
            ]

        try:
            outcomes = await asyncio.get_running_loop().run_in_executor(self._threads, load)
        finally:
            for pin in pins:
                index.unpin(pin)
        broken = [(block, why) for block, why in zip(there, outcomes, strict=True) if isinstance(why, BadBlock)]
        for block, why in broken:
            await self._disk.lose(block.key, why)
        return [block for block, _ in broken]

    async def sweep(self) -> None:
        """Lets go of readers' regions that ended. Off the event loop: over a network, their owners are asked."""
        await asyncio.to_thread(self._regions.sweep)

    def close(self) -> None:
        self._threads.shutdown()
        self._regions.close()

    async def _in_thread(self, blocks: int, work: Callable[[threading.Event], _Pushed]) -> _Pushed:
        """A caller that is cancelled makes its thread stop after the load that it is in."""
        stop = threading.Event()
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, stop)
        tokens = blocks * BLOCK_TOKENS
        self._reading += 1
        self.queue_tokens += tokens

        def finished(_: object) -> None:
            self._reading -= 1
            self.queue_tokens -= tokens

        future.add_done_callback(finished)
        try:
            return await asyncio.shield(future)
        finally:
            stop.set()

    def _push(
        self, blocks: list[Stored], target: RegionDescriptor, part: Slice, stopped: Callable[[], bool]
    ) -> _Pushed:
        """Runs on a thread; raises nothing."""
        pushed = _Pushed()
        try:
            with self._regions.use(target) as region:
                for batch in _batches(blocks, part):
                    if stopped():
                        raise _Stopped("stopped by the reader, or its lease ended")
                    region.verify()
                    self._load(region, batch, part, pushed)
                region.verify()
        except (BadBlock, OSError, FabricError, _Stopped) as error:
            pushed.error = error
        return pushed

    def _load(self, region: RemoteRegion, blocks: list[Stored], part: Slice, pushed: _Pushed) -> None:
        """Straight into the region where this process may touch it, else by way of a buffer and one-sided writes."""
        memory = region.mapped()
        reads: list[Read] = []
        places: list[int] = []
        for at, block in enumerate(blocks, pushed.blocks):
            length = part.length or block.length
            place = part.offset + at * (part.stride or length)
            if place + length > region.descriptor.length:
                raise OutOfBounds(f"bytes {place} to {place + length} of a region of {region.descriptor.length} bytes")
            into = memoryview(bytearray(length)) if memory is None else memory[place : place + length]
            reads.append(Read(block.key, block.length, part.begin, into))
            places.append(place)
        for read, place, outcome in zip(reads, places, self._disk.engine.load(reads), strict=True):
            if outcome is not None:
                raise outcome
            if memory is None:
                region.write(place, read.into, TrafficClass.KV)
            pushed.blocks += 1


def _batches(blocks: list[Stored], part: Slice) -> list[list[Stored]]:
    each = max(1, part.length or max((block.length for block in blocks), default=1))
    step = max(1, BATCH_BYTES // each)
    return [blocks[at : at + step] for at in range(0, len(blocks), step)]
