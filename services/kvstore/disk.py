"""Index and storage engine kept in step: what is looked up is on the disk, what is evicted is gone.

The index is touched on the event loop only; the engine works on threads. A block that is being removed is not written
again before it is gone, so that its end can't meet the same block's new beginning.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from services.kvstore._index import BlockIndex
from services.kvstore.block import BadBlock, Block, Stored
from services.kvstore.engines import StorageEngine, Write
from services.kvstore.removals import Removals

log = logging.getLogger(__name__)

T = TypeVar("T")

FULL_SHARE = 16
"""One part in so many of what is stored goes when the disk is full: room for many writes, as each that fails costs the
blocks that were to follow it."""

PUTS = 4
"""Batches written at once: the disk is busy with some while others wait for their sync."""

_RECORD = np.dtype(
    [("key", "V16"), ("parent", "V16"), ("position", "<u4"), ("length", "<u4"), ("size", "<u4"), ("zero", "<u4")]
)


@dataclass(slots=True)
class Counters:
    """Since the start of the process."""

    lookups: int = 0
    keys_asked: int = 0
    keys_hit: int = 0
    blocks_read: int = 0
    bytes_read: int = 0
    blocks_written: int = 0
    bytes_written: int = 0
    blocks_evicted: int = 0
    blocks_corrupt: int = 0
    blocks_adopted: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """`capacity` in bytes as the engine counts them. Above `high` of it, eviction goes on in the background down to
    `low`; one root (model, layout and tenant) has at most `root_share` of it."""

    capacity: int
    high: float = 1.0
    low: float = 1.0
    root_share: float = 1.0


@dataclass(slots=True)
class _Room:
    """What was reserved for one write."""

    write: Write
    size: int
    root: bytes
    parent: bytes  # pins


class Disk:
    """Opened by `open`, which rebuilds the index from what the engine finds."""

    def __init__(self, engine: StorageEngine, limits: Limits) -> None:
        self.engine, self.limits = engine, limits
        self.index = BlockIndex(limits.capacity, int(limits.capacity * limits.root_share))
        self.counters = Counters()
        self._puts = ThreadPoolExecutor(PUTS, "kvstore-put")
        self._removes = ThreadPoolExecutor(1, "kvstore-remove")
        self._removals = Removals(self._removes, engine.remove)

    async def open(self) -> None:
        scan = await self._on(self._removes, self.engine.scan)
        unwanted = self.index.rebuild(self._records(scan.blocks))
        self.counters.blocks_corrupt += scan.broken
        await self._removals.remove(unwanted)
        log.info(
            "store opened",
            extra={
                "blocks": len(self.index),
                "bytes": self.index.stored,
                "broken": scan.broken,
                "removed": len(unwanted),
            },
        )

    def size(self, block: Block) -> int:
        """Of the capacity, what the block takes."""
        return self.engine.footprint(block.length)

    def misfit(self, block: Block) -> str:
        """Why there can never be room for it; empty when there can."""
        most = int(self.limits.capacity * self.limits.root_share)
        if block.length > self.engine.largest_block:
            return f"the engine takes blocks of {self.engine.largest_block} at most"
        return f"it takes {self.size(block)} of the {most} that it may" if self.size(block) > most else ""

    async def store(self, writes: Sequence[Write]) -> list[str]:
        """Makes room, writes, and only then makes blocks visible. One word a block: empty, or why not.

        Parents come before children. Of a block that was refused nothing stays.
        """
        reasons = [""] * len(writes)
        rooms: dict[int, _Room] = {}
        evicted: list[bytes] = []
        coming: dict[bytes, tuple[bytes, int]] = {}  # key: root and position of what this call stores
        for at, write in enumerate(writes):
            got = self._reserve(write, coming, evicted)
            if isinstance(got, str):
                reasons[at] = got
            else:
                rooms[at] = got
                coming[write.block.key] = got.root, write.block.position
        outcomes: list[Exception | None] = []
        try:
            if rooms:
                await self._removals.remove(evicted)
                await self._removals.gone([room.write.block.key for room in rooms.values()])
                todo = [room.write for room in rooms.values()]
                outcomes = await self._on(self._puts, lambda: self.engine.put(todo))
                for at, outcome in zip(rooms, outcomes, strict=True):
                    reasons[at] = self._failure(writes[at].block, outcome)
        finally:
            for room in rooms.values():
                self.index.unpin(room.parent)
                self.index.unreserve(room.size, room.root)
        orphans = [rooms[at] for at in rooms if not reasons[at] and not self._add(rooms[at])]
        for at, room in rooms.items():
            if room in orphans:
                reasons[at] = "no parent"
        await self._removals.remove([room.write.block.key for room in reversed(orphans)])
        if any(isinstance(outcome, OSError) and _is_full(outcome) for outcome in outcomes):
            await self.free(max(self.index.stored // FULL_SHARE, *(room.size for room in rooms.values())))
        return reasons

    async def adopt(self, found: Sequence[Stored]) -> None:
        """Takes in blocks that another store put into a shared engine, in chain order, as far as there is room."""
        evicted: list[bytes] = []
        for key, parent, position, length in found:
            root = self.index.root_of(parent, position)
            if key in self.index:
                continue
            if key in self._removals or root is None or not self.index.may_follow(parent, position):
                break
            size, pins = self.engine.footprint(length), self.index.pin_run(parent if position else b"")
            room = self.index.reserve(size, root)
            self.index.unpin(pins)
            if room is None:
                break
            evicted += room
            self.index.unreserve(size, root)
            self.index.add(key, parent, position, length, size)
            self.counters.blocks_adopted += 1
        self.counters.blocks_evicted += len(evicted)
        await self._removals.remove(evicted)

    async def lose(self, key: bytes, why: Exception) -> None:
        """A load found the block broken: drops it with all that hangs on it."""
        log.warning("a block is lost", extra={"key": key.hex(), "reason": str(why)})
        if lost := self.index.drop(key):
            self.counters.blocks_corrupt += 1
            await self._removals.remove(lost)

    async def relieve(self) -> None:
        """Evicts down to the low mark when the high one is passed, so that writers find room that is free already."""
        limits = self.limits
        if self.index.used > limits.capacity * limits.high:
            await self.free(self.index.used - int(limits.capacity * limits.low))

    async def free(self, size: int) -> int:
        """Evicts `size` bytes or a little more, if it is there to evict. Returns how many blocks went."""
        evicted = self.index.evict(size) if size > 0 else []
        self.counters.blocks_evicted += len(evicted)
        await self._removals.remove(evicted)
        return len(evicted)

    async def close(self) -> None:
        await self._on(self._removes, self.engine.close)
        self._puts.shutdown()
        self._removes.shutdown()

    def _reserve(self, write: Write, coming: dict[bytes, tuple[bytes, int]], evicted: list[bytes]) -> _Room | str:
        block, index = write.block, self.index
        if block.key in index or block.key in coming:
            return "exists"
        if block.parent in coming and block.position:
            root, before = coming[block.parent]
            if before != block.position - 1:
                return "no parent"
            parent = b""
        elif index.may_follow(block.parent, block.position):
            root = index.root_of(block.parent, block.position) or block.parent
            parent = index.pin_run(block.parent if block.position else b"")
        else:
            return "no parent"
        size = self.size(block)
        room = index.reserve(size, root)
        if room is None:
            index.unpin(parent)
            return "full: what is stored is leased, or the block is larger than the store or its root's share"
        self.counters.blocks_evicted += len(room)
        evicted += room
        return _Room(write, size, root, parent)

    def _add(self, room: _Room) -> bool:
        """False: the parent was refused, or found broken meanwhile."""
        block = room.write.block
        if not self.index.may_follow(block.parent, block.position):
            return False
        if block.key not in self.index:  # else a lookup has found it in a shared engine, and adopted it, already
            self.index.add(block.key, block.parent, block.position, block.length, room.size)
        self.counters.blocks_written += 1
        self.counters.bytes_written += block.length
        return True

    def _failure(self, block: Block, outcome: Exception | None) -> str:
        if outcome is None:
            return ""
        if isinstance(outcome, OSError):
            log.error("a block could not be written", extra={"key": block.key.hex(), "reason": str(outcome)})
            return f"disk: {outcome.strerror or outcome}"
        if isinstance(outcome, BadBlock):
            return str(outcome)
        raise outcome

    def _records(self, blocks: Sequence[Stored]) -> bytes:
        records = np.zeros(len(blocks), _RECORD)
        for name, column in zip(("key", "parent", "position", "length"), zip(*blocks, strict=True), strict=False):
            if name in ("key", "parent"):
                records[name] = np.frombuffer(b"".join(column), "V16")
            else:
                records[name] = column
        sizes = {length: self.engine.footprint(length) for length in set(records["length"].tolist())}
        records["size"] = [sizes[length] for length in records["length"].tolist()]
        return records.tobytes()

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)


def _is_full(error: OSError) -> bool:
    """The disk is smaller than the store may be, or others fill it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
