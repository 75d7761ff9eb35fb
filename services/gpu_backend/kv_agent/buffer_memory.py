"""Which part of the memory for buffers is whose: bounded, accounted, first come, first served. Pure but for asyncio's
futures."""

import asyncio
from collections import deque


class LargerThanAll(Exception):
    """The size asked for exceeds all the memory there is; the message names both."""


class Share:
    """A part of the memory, or a place in the queue for it: `granted` is done once it is held. `first`: its first byte,
    from then on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.first = 0
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.returned = False


class BufferMemory:
    """Verbs: ask, give_back. Shares are in one piece and don't overlap; held + free = size, always."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: list[Share] = []  # by place
        self._waiting: deque[Share] = deque()

    @property
    def free(self) -> int:
        return self.size - sum(share.size for share in self._held)

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

    def give_back(self, share: Share) -> None:
        """Whether it was granted yet or not. Idempotent."""
        if share.returned:
            return
        share.returned = True
        (self._held if share.granted.done() else self._waiting).remove(share)
        self._grant()

    def _grant(self) -> None:
        while self._waiting and (gap := self._gap(self._waiting[0].size)) is not None:
            index, first = gap
            share = self._waiting.popleft()
            share.first = first
            self._held.insert(index, share)
            share.granted.set_result(None)

    def _gap(self, size: int) -> tuple[int, int] | None:
        """The first that is large enough: which share comes behind it, and where it begins."""
        begin = 0
        for index, held in enumerate(self._held):
            if held.first - begin >= size:
                return index, begin
            begin = held.first + held.size
        return (len(self._held), begin) if self.size - begin >= size else None
