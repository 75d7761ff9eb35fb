"""Which part of the memory for buffers is whose: bounded, accounted, first come, first served. Pure but for asyncio's
futures.

A part that somebody who stands still may write to at any time can be nobody else's. It is written off, and as much
memory elsewhere is granted in its place.
"""

import asyncio
from collections import deque


class LargerThanAll(Exception):
    """The size asked for exceeds all the memory there is; the message names both."""


class Share:
    """A part of the memory, or a place in the queue for it: `granted` is done once it is held. From then on `first` is
    its first byte; or it lies `apart`: so much other memory may be used."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.first = 0
        self.apart = self.lost = False
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.returned = False


class BufferMemory:
    """Verbs: ask, write_off, give_back. Shares are in one piece and don't overlap; held + free = size, always. While
    something is written off, others may lie apart, `size` bytes at most: so `free` may be below 0."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: list[Share] = []  # by place
        self._apart: list[Share] = []
        self._waiting: deque[Share] = deque()

    @property
    def free(self) -> int:
        return self.size - sum(share.size for share in (*self._held, *self._apart))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ask(self, size: int) -> Share:
        """Raises LargerThanAll."""
        if size > self.size:
            raise LargerThanAll(f"{size} bytes of buffer are needed, there are {self.size} in all")
        share = Share(size)
        self._waiting.append(share)
        self._grant()
        return share

    def write_off(self, share: Share) -> None:
        """One that is held: nobody knows when it comes back."""
        share.lost = True
        self._grant()

    def give_back(self, share: Share) -> None:
        """Whether it was granted yet or not. Idempotent."""
        if share.returned:
            return
        share.returned = True
        holders = self._apart if share.apart else self._held
        (holders if share.granted.done() else self._waiting).remove(share)
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            share = self._waiting[0]
            if (gap := self._gap(share.size)) is not None:
                index, share.first = gap
                self._held.insert(index, share)
            elif self._room_apart(share.size):
                share.apart = True
                self._apart.append(share)
            else:
                return
            self._waiting.popleft()
            share.granted.set_result(None)

    def _room_apart(self, size: int) -> bool:
        lost = sum(share.size for share in self._held if share.lost)
        return lost > 0 and size <= self.free + lost

    def _gap(self, size: int) -> tuple[int, int] | None:
        """The first that is large enough: which share comes behind it, and where it begins."""
        begin = 0
        for index, held in enumerate(self._held):
            if held.first - begin >= size:
                return index, begin
            begin = held.first + held.size
        return (len(self._held), begin) if self.size - begin >= size else None
