"""Tickets: places in the write buffer that writers were given for a bounded time. Pure.

A block goes Begin -> ticket -> (bytes arrive one-sided) -> Commit or Abort. A ticket that is being
committed doesn't expire: its bytes are being read.
"""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from services.kvstore.block import Block

GRANULE = 64 << 10


class Slab:
    """Parts of a buffer of `size` bytes: first fit, in granules of 64 KiB, so that blocks of several models mix."""

    def __init__(self, size: int) -> None:
        self.size = size // GRANULE * GRANULE
        self._free: list[tuple[int, int]] = [(0, self.size)]  # (begin, end), sorted, never touching

    @property
    def free(self) -> int:
        return sum(end - begin for begin, end in self._free)

    def take(self, size: int) -> int | None:
        """Offset of `size` bytes, or None when no gap is large enough."""
        need = -(-size // GRANULE) * GRANULE
        for at, (begin, end) in enumerate(self._free):
            if end - begin >= need:
                self._free[at : at + 1] = [(begin + need, end)] if end - begin > need else []
                return begin
        return None

    def give(self, offset: int, size: int) -> None:
        """Gives back what `take(size)` returned."""
        begin, end = offset, offset + -(-size // GRANULE) * GRANULE
        at = bisect.bisect(self._free, (begin, end))
        if at < len(self._free) and self._free[at][0] == end:
            end = self._free.pop(at)[1]
        if at and self._free[at - 1][1] == begin:
            at -= 1
            begin = self._free.pop(at)[0]
        self._free.insert(at, (begin, end))


@dataclass(slots=True, eq=False)
class Ticket:
    id: int
    block: Block
    offset: int
    ends: float
    parent: bytes
    """Pins of the parent, if it is stored already."""
    committing: bool = False


class Tickets:
    """Open tickets, one a key. Ids are never reused, also not after a restart (see Leases)."""

    def __init__(self, slab: Slab, epoch: int) -> None:
        self._slab = slab
        self._next = (epoch & 0xFFFFFFFF) << 32 | 1
        self._tickets: dict[int, Ticket] = {}
        self._keys: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._tickets)

    def writing(self, key: bytes) -> bool:
        return key in self._keys

    def open(self, block: Block, parent: bytes, ends: float) -> Ticket | None:
        """A place for the block's bytes, or None when the buffer is full. Its key must not be being written."""
        offset = self._slab.take(block.length)
        if offset is None:
            return None
        ticket = Ticket(self._next, block, offset, ends, parent)
        self._next += 1
        self._tickets[ticket.id] = ticket
        self._keys.add(block.key)
        return ticket

    def commit(self, ticket_id: int, now: float) -> Ticket | None:
        """The ticket, now being committed; the caller closes it. None: unknown, expired or committed already."""
        ticket = self._tickets.get(ticket_id)
        if ticket is None or ticket.committing or ticket.ends <= now:
            return None
        ticket.committing = True
        return ticket

    def abortable(self, ticket_ids: Iterable[int]) -> list[Ticket]:
        found = (self._tickets.get(ticket_id) for ticket_id in ticket_ids)
        return [ticket for ticket in found if ticket is not None and not ticket.committing]

    def expired(self, now: float) -> list[Ticket]:
        return [t for t in self._tickets.values() if t.ends <= now and not t.committing]

    def close(self, ticket: Ticket) -> None:
        """Frees the ticket's place. The caller unpins its parent."""
        del self._tickets[ticket.id]
        self._keys.discard(ticket.block.key)
        self._slab.give(ticket.offset, ticket.block.length)
