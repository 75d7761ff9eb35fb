"""How much memory buffers may take: bounded, accounted, first come, first served. Pure but for asyncio's futures."""

import asyncio
from collections import deque


class LargerThanAll(Exception):
    """The size asked for exceeds all the memory there is; the message names both."""


class Share:
    """A part of the memory, or a place in the queue for it: `granted` is done once it is held."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.returned = False


class BufferMemory:
    """Verbs: ask, give_back. held + free = size, always."""

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._waiting: deque[Share] = deque()

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
        if share.granted.done():
            self.free += share.size
        else:
            self._waiting.remove(share)
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._waiting[0].size <= self.free:
            share = self._waiting.popleft()
            self.free -= share.size
            share.granted.set_result(None)
