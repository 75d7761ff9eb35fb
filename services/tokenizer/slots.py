"""Slot tracker (B12): which of the leased slots are free, known without asking the ring."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric.ring import Finish, SlotState
from services.fabric.ring.layout import unpack


class Claim(NamedTuple):
    """A free slot, taken for one request: publish by swapping `expected` for a word of `generation`."""

    slot: int
    generation: int
    expected: int


class SlotTracker:
    """A local availability cache over the slots [begin, begin + len(words)) of one lease.

    The front end alone fills and empties its slots, so the cache is exact for every slot that it has
    used; one bulk read of all words starts it, and may refresh it for slots that were found in use.
    A slot is held from acquire() until release(), and never handed out meanwhile.
    """

    def __init__(self, begin: int, words: NDArray[np.uint64]) -> None:
        self._begin = begin
        self._words: list[int] = words.tolist()
        self._free = bytearray(len(words))  # 1: may be handed out
        self._held = bytearray(len(words))
        self._hint = 0
        self.available = 0
        self.refresh(words)

    def refresh(self, words: NDArray[np.uint64]) -> None:
        """Takes the availability of all slots that are not held from freshly read slot words."""
        if len(words) != len(self._free):
            raise ValueError(f"{len(words)} words for {len(self._free)} slots")
        empty = unpack(words).states == SlotState.EMPTY
        for index in np.flatnonzero(empty).tolist():
            if not self._held[index] and not self._free[index]:
                self._words[index] = int(words[index])
                self._free[index] = 1
                self.available += 1

    def acquire(self) -> Claim | None:
        """Takes a free slot, or None. Circular from where the last one was found, so O(1) amortised."""
        if not self.available:
            return None
        index = self._free.find(1, self._hint)
        if index < 0:
            index = self._free.find(1)
        self._free[index] = 0
        self._held[index] = 1
        self.available -= 1
        self._hint = index + 1
        word = self._words[index]
        generation = _ring.unpack_word(word)[2]
        return Claim(self._begin + index, _ring.next_generation(generation), word)

    def release(self, slot: int, word: int) -> None:
        """Gives a held slot back; `word` is what the ring holds there now, with state empty."""
        index = slot - self._begin
        if not 0 <= index < len(self._held) or not self._held[index]:
            raise ValueError(f"slot {slot} is not held")
        self._held[index] = 0
        self._free[index] = 1
        self._words[index] = word
        self.available += 1

    def check(self) -> None:
        """Integrity: free + held + in use by nobody known = all. For tests; raises AssertionError."""
        assert self.available == sum(self._free)
        assert not any(free and held for free, held in zip(self._free, self._held, strict=True))


def empty_word(generation: int) -> int:
    """The slot word of a free slot whose last request had `generation`."""
    return _ring.slot_word(SlotState.EMPTY, Finish.NONE, generation, 0)
