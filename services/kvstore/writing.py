"""The writing side: give places in the write buffer, take what was put there to disk, give places back."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.region import MemoryRegion
from services.kvstore import _segments
from services.kvstore.block import Block
from services.kvstore.disk import Disk
from services.kvstore.engines import Write
from services.kvstore.leases import Leases
from services.kvstore.regions import guard
from services.kvstore.tickets import Slab, Ticket, Tickets

PARENT_S = 1.0
"""A block waits so long, at most, for a parent that another writer is still bringing."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block's bytes go; ticket_id 0: nowhere, `reason` says why."""

    ticket_id: int = 0
    offset: int = 0
    reason: str = ""


class Writer:
    """Used on one event loop. Commits run as tasks of `tasks`, so that a writer that goes away in the middle
    of one leaves the store whole.

    A block goes to disk from its place in the buffer, without a copy. A writer that scribbles there meanwhile spoils
    its own block only: what is read is verified against the checksum that was stored.
    """

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
        self._memory = region.view.data
        self.tickets = Tickets(self._slab, epoch)
        self.draining = False
        self._closed = asyncio.Event()  # set, and replaced, when a ticket is closed
        guard(self._memory)
        disk.engine.register(self._memory)

    @property
    def descriptor(self) -> RegionDescriptor:
        return self._region.descriptor()

    def begin(self, blocks: Sequence[Block]) -> list[Place]:
        """One place a block, in order; parents come before their children."""
        now = time.monotonic()
        self.expire(now)
        return [self._begin_one(block, now) for block in blocks]

    async def commit(self, blocks: Sequence[tuple[int, int]]) -> list[str]:
        """Takes (ticket, crc32c) to disk under one sync. Empty: stored, durable and visible; else why not."""
        return await asyncio.shield(self._tasks.create_task(self._commit(blocks)))

    def abort(self, ticket_ids: Sequence[int]) -> None:
        """Idempotent. A ticket that is being committed is left to that."""
        for ticket in self.tickets.abortable(ticket_ids):
            self._close(ticket)

    def expire(self, now: float) -> None:
        for ticket in self.tickets.expired(now):
            self._close(ticket)

    def close(self) -> None:
        self._disk.engine.unregister(self._memory)
        _segments.unguard(self._memory)

    def _begin_one(self, block: Block, now: float) -> Place:
        if reason := self._refusal(block):
            return Place(reason=reason)
        index = self._disk.index
        parent = index.pin_run(block.parent if block.position else b"")
        ticket = self.tickets.open(block, parent, now + self._ticket_s)
        if ticket is None:
            index.unpin(parent)
            return Place(reason="full: no room in the write buffer")
        return Place(ticket.id, ticket.offset)

    def _refusal(self, block: Block) -> str:
        index = self._disk.index
        if self.draining:
            return "draining: this store takes no more blocks"
        if fault := block.fault():
            return f"bad block: {fault}"
        if block.key in index:
            return "exists"
        if self.tickets.writing(block.key):
            return "writing"
        small = f"the write buffer has {self._slab.size}" if block.length > self._slab.size else ""
        if misfit := self._disk.misfit(block) or small:
            return f"too large: {block.length} bytes; {misfit}"
        if not index.may_follow(block.parent, block.position) and not self.tickets.writing(block.parent):
            return "no parent"
        return ""

    async def _commit(self, blocks: Sequence[tuple[int, int]]) -> list[str]:
        now = time.monotonic()
        self._leases.expire(now)  # what they held may be evicted for these blocks
        reasons = ["no such ticket, or it has expired"] * len(blocks)
        tickets: dict[int, Ticket] = {}
        for at, (ticket_id, _) in enumerate(blocks):
            if (ticket := self.tickets.commit(ticket_id, now)) is not None:
                tickets[at] = ticket
        try:
            await self._parents([ticket.block for ticket in tickets.values()])
            writes = [Write(ticket.block, self._bytes(ticket), blocks[at][1]) for at, ticket in tickets.items()]
            for at, reason in zip(tickets, await self._disk.store(writes), strict=True):
                reasons[at] = reason
        finally:
            for ticket in tickets.values():
                self._close(ticket)
        await self._disk.relieve()
        return reasons

    async def _parents(self, blocks: Sequence[Block]) -> None:
        """Two engines may bring blocks of one chain at once: a child's commit may be here before its parent's."""
        own = {block.key for block in blocks}
        awaited = {block.parent for block in blocks if block.position} - own
        with suppress(TimeoutError):
            async with asyncio.timeout(PARENT_S):
                while any(map(self.tickets.writing, awaited)):
                    await self._closed.wait()

    def _bytes(self, ticket: Ticket) -> memoryview:
        return self._memory[ticket.offset : ticket.offset + ticket.block.length]

    def _close(self, ticket: Ticket) -> None:
        self.tickets.close(ticket)
        self._disk.index.unpin(ticket.parent)
        self._closed.set()
        self._closed = asyncio.Event()
