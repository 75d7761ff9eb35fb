"""The KV agent's end of the order ring (step.hpp): take orders, answer loads, free stored pages."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend._scheduler import KvOrderKind

__all__ = ["KvOrderKind", "OrderQueue"]


class OrderCalls(Protocol):
    """The three calls between core and agent; of the native HostScheduler, or over mapped memory."""

    def orders_head(self) -> int: ...
    def release_orders(self, tail: int) -> None: ...
    def answer_load(self, slot: int, generation: int, blocks: int) -> None: ...


class OrderMemory(Protocol):
    """As EngineMemory has them."""

    orders: NDArray[Any]
    block_tables: NDArray[np.uint32]


class OrderQueue:
    """For one thread. Orders come in the order in which things happened; each is taken once.

    A load must be answered, always, with how many of its blocks are in the pages; 0 is an answer. A
    stored page stays untouched until its order is released, so release soon, stored or not: a store
    that can't be done is a later miss and nothing else.
    """

    def __init__(self, native: OrderCalls, memory: OrderMemory) -> None:
        self._native = native
        self._memory = memory
        self._taken = self._released = 0

    @property
    def unreleased(self) -> int:
        """Orders taken and not released."""
        return self._taken - self._released

    def take(self) -> NDArray[Any]:
        """The orders that are new since the last call (dtype KV_ORDER). A copy; maybe empty."""
        head = self._native.orders_head()
        ring = self._memory.orders
        fresh: NDArray[Any] = ring[np.arange(self._taken, head) % len(ring)]
        self._taken = head
        return fresh

    def pages_of(self, order: NDArray[Any] | np.void) -> NDArray[np.uint32]:
        """The pages that a load is to fill, first block first. A copy."""
        lane, count = int(order["lane"]), int(order["block_count"])
        return self._memory.block_tables[lane, :count].copy()

    def answer_load(self, order: NDArray[Any] | np.void, blocks: int) -> None:
        """After the bytes are in the pages: the load's first `blocks` blocks are there."""
        self._native.answer_load(int(order["slot"]), int(order["generation"]), blocks)

    def release(self, count: int) -> None:
        """The `count` oldest unreleased orders are done with; the pages of their stores may be reused."""
        if count > self.unreleased:
            raise ValueError(f"{count} orders are to be released, only {self.unreleased} were taken")
        self._released += count
        self._native.release_orders(self._released)
