"""Index and storage engine kept in step: what is looked up is on the disk, what is evicted is gone.

The index is touched on the event loop only. All changes of the disk go through one thread, in order, so a
block that was evicted can't delete the file of the same block written again.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from services.kvstore.block import BadBlock, Block
from services.kvstore.engines import StorageEngine
from services.kvstore.index import Index

log = logging.getLogger(__name__)

T = TypeVar("T")

FULL_SHARE = 16
"""One part in so many of what is stored goes when the disk is full: room for many writes, as each that fails costs the
blocks that were to follow it."""


@dataclass(slots=True)
class Counters:
    """Since the start of the process."""

    lookups: int = 0
    keys_asked: int = 0
    keys_hit: int = 0
    blocks_read: int = 0
    blocks_written: int = 0
    blocks_evicted: int = 0
    blocks_corrupt: int = 0


class Refused(Exception):
    """The block was not stored; the message says why. Nothing of it stays."""


class Disk:
    """Opened by `open`, which rebuilds the index from what the engine finds."""

    def __init__(self, engine: StorageEngine, capacity: int) -> None:
        self.engine = engine
        self.index = Index(capacity)
        self.counters = Counters()
        self._changes = ThreadPoolExecutor(1, "kvstore-disk")

    async def open(self) -> None:
        blocks, broken = await self._change(self.engine.scan)
        unwanted = self.index.rebuild(blocks)
        self.counters.blocks_corrupt += broken
        await self._remove(unwanted)
        log.info(
            "store opened",
            extra={"blocks": len(self.index), "bytes": self.index.stored, "broken": broken, "removed": len(unwanted)},
        )

    async def store(self, block: Block, payload: Iterable[memoryview], crc: int) -> None:
        """Makes room, writes, and only then makes the block visible. Raises Refused."""
        if block.key in self.index:
            raise Refused("exists")
        if not self.index.may_follow(block):
            raise Refused("no parent")
        parent = self.index.pin([block.parent] if block.position else [])
        evicted = self.index.reserve(block.file_bytes)
        if evicted is None:
            self.index.unpin(parent)
            raise Refused("full: what is stored is leased, or the block is larger than the store")
        self.counters.blocks_evicted += len(evicted)
        try:
            await self._remove(evicted)
            await self._change(lambda: self.engine.put(block, payload, crc))
        except BadBlock as error:
            raise Refused(str(error)) from error
        except OSError as error:
            log.error("a block could not be written", extra={"key": block.key.hex(), "reason": str(error)})
            if error.errno in (
                errno.ENOSPC,
                errno.EDQUOT,
            ):  # the disk is smaller than the store may be, or others fill it
                await self._evict(max(block.file_bytes, self.index.stored // FULL_SHARE))
            raise Refused(f"disk: {error.strerror or error}") from error
        finally:
            self.index.unpin(parent)
            self.index.unreserve(block.file_bytes)
        if not self.index.may_follow(block):  # the parent was found broken meanwhile
            await self._remove([block])
            raise Refused("no parent")
        self.index.add(block)
        self.counters.blocks_written += 1

    async def lose(self, block: Block, why: Exception) -> None:
        """A load found the block broken: drops it with all that hangs on it."""
        log.warning("a block is lost", extra={"key": block.key.hex(), "reason": str(why)})
        if self.index.get(block.key) == block:
            self.counters.blocks_corrupt += 1
            await self._remove(self.index.drop(block.key))

    async def close(self) -> None:
        await self._change(self.engine.close)
        self._changes.shutdown()

    async def _evict(self, size: int) -> None:
        """Makes room on the disk for the next blocks, so that the old ones don't keep new ones out for ever."""
        evicted = self.index.evict(size)
        self.counters.blocks_evicted += len(evicted)
        await self._remove(evicted)

    async def _remove(self, blocks: list[Block]) -> None:
        """A file that can't be removed comes back to the index at the next start; until then it is only lost room."""

        def remove() -> None:
            for block in blocks:
                try:
                    self.engine.remove(block.key)
                except OSError as error:
                    log.error("a block could not be removed", extra={"key": block.key.hex(), "reason": str(error)})

        if blocks:
            await self._change(remove)

    async def _change(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._changes, work)
