"""Pauses between attempts at something that another process must make possible again."""

import asyncio
import random


class Backoff:
    """Each pause is twice the one before, up to the longest; chance shortens it, so that peers don't come in step."""

    def __init__(self, first_s: float = 0.1, longest_s: float = 2.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    async def pause(self) -> None:
        """Sleeps half to all of the next pause."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, self._longest_s)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    def reset(self) -> None:
        """An attempt went well: the next pause is the first one again."""
        self._next_s = self._first_s

    def lengthen(self) -> None:
        """There is no hope for now: the next pause is the longest one."""
        self._next_s = self._longest_s
