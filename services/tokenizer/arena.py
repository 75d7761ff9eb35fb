"""Word ranges of a leased arena: where prompts are put and tokens are expected (B14)."""

from bisect import bisect_left, insort
from typing import NamedTuple


class ArenaFull(Exception):
    """No free range is long enough now; one will be when others are freed."""


class TooLarge(Exception):
    """The whole arena is shorter than what was asked for."""


class Span(NamedTuple):
    """Words [begin, begin + words), absolute in the arena."""

    begin: int
    words: int


class Arena:
    """Best fit with immediate coalescing over the words [begin, begin + count).

    Neighbouring free ranges are always joined, so there are at most live + 1 of them: a request of up
    to free_words / (live + 1) words always succeeds, however the arena was used before. Searching is
    O(log n) in the number of free ranges; keeping their order moves at most that many list entries.
    Sizes are rounded up to GRANULE words, one cache line, so that requests never share one.
    """

    GRANULE = 16

    def __init__(self, begin: int, count: int) -> None:
        first = -(-begin // self.GRANULE) * self.GRANULE
        self.capacity = max(0, (begin + count) // self.GRANULE * self.GRANULE - first)
        self.free_words = 0
        self._held: dict[int, int] = {}  # begin -> rounded count
        self._end_of: dict[int, int] = {}  # free ranges: begin -> end
        self._begin_of: dict[int, int] = {}  # and end -> begin
        self._by_size: list[tuple[int, int]] = []  # (count, begin), sorted
        if self.capacity:
            self._add_free(first, first + self.capacity)

    @property
    def live(self) -> int:
        """Ranges held now."""
        return len(self._held)

    @property
    def largest(self) -> int:
        """The longest range that could be allocated now."""
        return self._by_size[-1][0] if self._by_size else 0

    def allocate(self, words: int) -> Span:
        """The lowest of the shortest free ranges that fit. Raises TooLarge or ArenaFull."""
        if words <= 0:
            raise ValueError(f"a range needs at least one word, not {words}")
        count = -(-words // self.GRANULE) * self.GRANULE
        if count > self.capacity:
            raise TooLarge(f"{words} words asked of an arena of {self.capacity}")
        index = bisect_left(self._by_size, (count, 0))
        if index == len(self._by_size):
            raise ArenaFull(f"{words} words asked, {self.free_words} free, at most {self.largest} in one piece")
        size, begin = self._by_size[index]
        self._remove_free(begin, begin + size)
        if size > count:
            self._add_free(begin + count, begin + size)
        self._held[begin] = count
        return Span(begin, words)

    def free(self, span: Span) -> None:
        """Gives a range back. Raises ValueError for one that is not held."""
        count = self._held.pop(span.begin, 0)
        if not count:
            raise ValueError(f"no range is held at word {span.begin}")
        begin, end = span.begin, span.begin + count
        if (before := self._begin_of.get(begin)) is not None:
            self._remove_free(before, begin)
            begin = before
        if (after := self._end_of.get(end)) is not None:
            self._remove_free(end, after)
            end = after
        self._add_free(begin, end)

    def check(self) -> None:
        """Integrity: free + held = all, and no two free ranges touch. For tests; raises AssertionError."""
        assert self.free_words + sum(self._held.values()) == self.capacity
        assert not set(self._end_of) & set(self._begin_of)
        assert sorted((end - begin, begin) for begin, end in self._end_of.items()) == self._by_size

    def _add_free(self, begin: int, end: int) -> None:
        self._end_of[begin] = end
        self._begin_of[end] = begin
        insort(self._by_size, (end - begin, begin))
        self.free_words += end - begin

    def _remove_free(self, begin: int, end: int) -> None:
        del self._end_of[begin]
        del self._begin_of[end]
        del self._by_size[bisect_left(self._by_size, (end - begin, begin))]
        self.free_words -= end - begin
