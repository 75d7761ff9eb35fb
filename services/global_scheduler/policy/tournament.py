"""The smallest of a changing set of keys, in order: what lets a policy choose among thousands of engines."""

import heapq
import math
from collections.abc import Iterator
from typing import Any

Key = tuple[Any, ...]
"""Compared as tuples. Keys of one tournament differ; their first element is a number below infinity."""

ABSENT: Key = (math.inf,)


class Tournament:
    """A binary tree whose inner nodes hold the smaller of their children's keys. A player's key changes in
    O(log players), the smallest is at the root. Each player has a seat: a number from `enter` until `leave`."""

    __slots__ = ("_free", "_leaves", "_tree")

    def __init__(self) -> None:
        self._leaves = 1
        self._tree: list[Key] = [ABSENT, ABSENT]  # node i's children are 2i and 2i+1; leaf of seat s: leaves + s
        self._free: list[int] = [0]

    def enter(self) -> int:
        """A free seat, without a key."""
        if not self._free:
            self._grow()
        return self._free.pop()

    def leave(self, seat: int) -> None:
        self.set(seat, None)
        self._free.append(seat)

    def set(self, seat: int, key: Key | None) -> None:
        """None: not to be chosen for now."""
        tree, node = self._tree, self._leaves + seat
        smaller = ABSENT if key is None else key
        tree[node] = smaller
        while node > 1:
            other = tree[node ^ 1]
            if other < smaller:
                smaller = other
            node >>= 1
            if tree[node] is smaller:
                return
            tree[node] = smaller

    def ascending(self) -> Iterator[Key]:
        """All keys, smallest first. The first costs O(1), each further one O(log players). Nothing may be set
        while this runs."""
        tree, leaves = self._tree, self._leaves
        if tree[1] is ABSENT:
            return
        yield tree[1]
        frontier: list[tuple[Key, int]] = []
        node = 1
        while True:
            key = tree[node]
            while node < leaves:  # down to this key's leaf; the loser of each match may come next
                node *= 2
                if tree[node] is not key:
                    node += 1
                if tree[node ^ 1] is not ABSENT:
                    heapq.heappush(frontier, (tree[node ^ 1], node ^ 1))
            if not frontier:
                return
            key, node = heapq.heappop(frontier)
            yield key

    def _grow(self) -> None:
        keys = self._tree[self._leaves :]
        self._free = list(range(2 * self._leaves - 1, self._leaves - 1, -1))
        self._leaves *= 2
        self._tree = [ABSENT] * self._leaves + keys + [ABSENT] * len(keys)
        for node in range(self._leaves - 1, 0, -1):
            self._tree[node] = min(self._tree[2 * node], self._tree[2 * node + 1])
