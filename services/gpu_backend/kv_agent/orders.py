"""The order ring as the agent needs it, and the rule that orders are let go in the order they came."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Orders(Protocol):
    """What scheduler.orders.OrderQueue does; see there."""

    def take(self) -> NDArray[Any]: ...

    def pages_of(self, order: NDArray[Any] | np.void) -> NDArray[np.uint32]: ...

    def answer_load(self, order: NDArray[Any] | np.void, blocks: int) -> None: ...

    def release(self, count: int) -> None: ...


class InOrder:
    """Orders may be done in any order; `release(n)` is called for the longest finished run of the oldest."""

    def __init__(self, release: Callable[[int], None]) -> None:
        self._release = release
        self._entered = self._released = 0
        self._done: set[int] = set()

    def enter(self) -> int:
        """One more order was taken; returns its number, for `done`."""
        self._entered += 1
        return self._entered - 1

    def done(self, number: int) -> None:
        """Idempotent."""
        if number < self._released:
            return
        self._done.add(number)
        begin = self._released
        while self._released in self._done:
            self._done.remove(self._released)
            self._released += 1
        if self._released > begin:
            self._release(self._released - begin)
