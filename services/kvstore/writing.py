"""The writing side: give places in the write buffer, take what was put there to disk, give places back."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.region import MemoryRegion
from services.kvstore.block import Block
from services.kvstore.disk import Disk, Refused
from services.kvstore.engines import PIECE_BYTES
from services.kvstore.leases import Leases
from services.kvstore.tickets import Slab, Ticket, Tickets


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block's bytes go; ticket_id 0: nowhere, `reason` says why."""

    ticket_id: int = 0
    offset: int = 0
    reason: str = ""


class Writer:
    """Used on one event loop. Commits run as tasks of `tasks`, so that a writer that goes away in the middle
    of one leaves the store whole."""

    def __init__(
        self,
        disk: Disk,
        leases: Leases,
        region: MemoryRegion,
        epoch: int,
        ticket_s: float,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._disk, self._leases, self._region, self._ticket_s, self._tasks = disk, leases, region, ticket_s, tasks
        self._slab = Slab(region.length)
        self.tickets = Tickets(self._slab, epoch)

    @property
    def descriptor(self) -> RegionDescriptor:
        return self._region.descriptor()

    def begin(self, blocks: Sequence[Block]) -> list[Place]:
        """One place a block, in order; parents come before their children."""
        now = time.monotonic()
        self.expire(now)
        return [self._begin_one(block, now) for block in blocks]

    async def commit(self, blocks: Sequence[tuple[int, int]]) -> list[str]:
        """Takes (ticket, crc32c) to disk, in order. Empty: stored, durable and visible; else why not."""
        return await asyncio.shield(self._tasks.create_task(self._commit(blocks)))

    def abort(self, ticket_ids: Sequence[int]) -> None:
        """Idempotent. A ticket that is being committed is left to that."""
        for ticket in self.tickets.abortable(ticket_ids):
            self._close(ticket)

    def expire(self, now: float) -> None:
        for ticket in self.tickets.expired(now):
            self._close(ticket)

    def _begin_one(self, block: Block, now: float) -> Place:
        if reason := self._refusal(block):
            return Place(reason=reason)
        index = self._disk.index
        parent = index.pin([block.parent]) if block.position and block.parent in index else []
        ticket = self.tickets.open(block, parent, now + self._ticket_s)
        if ticket is None:
            index.unpin(parent)
            return Place(reason="full: no room in the write buffer")
        return Place(ticket.id, ticket.offset)

    def _refusal(self, block: Block) -> str:
        index = self._disk.index
        if fault := block.fault():
            return f"bad block: {fault}"
        if block.key in index:
            return "exists"
        if self.tickets.writing(block.key):
            return "writing"
        if block.file_bytes > index.capacity or block.length > self._slab.size:
            return f"too large: {block.length} bytes"
        if not index.may_follow(block) and not self.tickets.writing(block.parent):
            return "no parent"
        return ""

    async def _commit(self, blocks: Sequence[tuple[int, int]]) -> list[str]:
        reasons = []
        for ticket_id, crc in blocks:
            now = time.monotonic()
            self._leases.expire(now)  # what they held may be evicted for this block
            ticket = self.tickets.commit(ticket_id, now)
            if ticket is None:
                reasons.append("no such ticket, or it has expired")
                continue
            try:
                await self._disk.store(ticket.block, self._pieces(ticket), crc)
                reasons.append("")
            except Refused as refusal:
                reasons.append(str(refusal))
            finally:
                self._close(ticket)
        return reasons

    def _pieces(self, ticket: Ticket) -> Iterator[memoryview]:
        """Copies of the buffer's bytes: a writer that is still scribbling can't change what was checked."""
        view, at = self._region.view, ticket.offset
        end = at + ticket.block.length
        while at < end:
            piece = view[at : min(at + PIECE_BYTES, end)].tobytes()
            yield memoryview(piece)
            at += len(piece)

    def _close(self, ticket: Ticket) -> None:
        self.tickets.close(ticket)
        self._disk.index.unpin(ticket.parent)
