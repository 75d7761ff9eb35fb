"""Which engines hold which KV blocks in memory, as they tell it: soft, and never more than a reason to prefer one."""

from services.common.keys import BLOCK_TOKENS, MARK_BYTES, marked
from services.global_scheduler.policy.state import Held

MOST_MARKS = 1 << 16
"""Of one engine; further ones are not remembered."""
MOST_MARKS_IN_ALL = 1 << 21
"""The same of all engines: about half a gigabyte of the scheduler's memory."""
HOLDERS = 32
"""Engines named for one request, those that hold most."""


class HeldIndex:
    """Blocks by their marks. An engine that holds a block holds all before it, so the longest of a chain's marked
    prefixes that is found says how much of it is held, to a sixteenth of the chain or better."""

    def __init__(self) -> None:
        self._holders: dict[bytes, tuple[str, ...]] = {}
        self._marks: dict[str, set[bytes]] = {}
        self._remembered = 0

    def hear(self, engine_id: str, added: bytes, removed: bytes) -> None:
        """What is removed first, then what is added."""
        for mark in _split(removed):
            if mark in self._marks.get(engine_id, ()):
                self._marks[engine_id].discard(mark)
                self._drop(engine_id, mark)
        if not added:
            return
        mine = self._marks.setdefault(engine_id, set())
        for mark in _split(added):
            if mark not in mine and len(mine) < MOST_MARKS and self._remembered < MOST_MARKS_IN_ALL:
                mine.add(mark)
                self._remembered += 1
                self._holders[mark] = (*self._holders.get(mark, ()), engine_id)

    def forget(self, engine_id: str) -> None:
        """Idempotent."""
        for mark in self._marks.pop(engine_id, ()):
            self._drop(engine_id, mark)

    def of(self, marks: bytes, cached_tokens: int) -> tuple[Held, ...]:
        """Who holds how much of a hit of so many tokens, by its chain's marks."""
        lengths = marked(cached_tokens // BLOCK_TOKENS)
        if len(marks) != MARK_BYTES * len(lengths):
            return ()
        found: dict[str, Held] = {}
        for mark, blocks in reversed(list(zip(_split(marks), lengths, strict=True))):
            for engine_id in self._holders.get(mark, ()):
                if len(found) == HOLDERS:  # a prefix that all have, of a thousand engines, is not looked through
                    return tuple(found.values())
                found.setdefault(engine_id, Held(engine_id, blocks * BLOCK_TOKENS))
        return tuple(found.values())

    def count(self, engine_id: str) -> int:
        """Blocks that it holds, as far as is remembered."""
        return len(self._marks.get(engine_id, ()))

    def check(self) -> None:
        """Integrity: both ways of looking agree. For tests; raises AssertionError."""
        told = {(engine_id, mark) for engine_id, marks in self._marks.items() for mark in marks}
        assert told == {(engine_id, mark) for mark, engines in self._holders.items() for engine_id in engines}
        assert len(told) == self._remembered <= MOST_MARKS_IN_ALL

    def _drop(self, engine_id: str, mark: bytes) -> None:
        self._remembered -= 1
        if left := tuple(other for other in self._holders[mark] if other != engine_id):
            self._holders[mark] = left
        else:
            del self._holders[mark]


def _split(marks: bytes) -> list[bytes]:
    return [marks[at : at + MARK_BYTES] for at in range(0, len(marks), MARK_BYTES)]
