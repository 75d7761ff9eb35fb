"""Full Blocks that were just loaded or offered, kept in this process's memory: whoever asks for them again needs not
read them from storage.

As in the store, no block is held without the one before it, and room is made by letting the least recently used ends of
chains go, where using a block uses all before it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from services.gpu_backend.kv_agent.pages import Blocks

MOST_BLOCKS = 1 << 16
"""Held by one engine: the global scheduler remembers each of them."""


@dataclass(slots=True, eq=False)
class _Block:
    key: bytes
    place: int
    parent: "_Block | None"
    used: int = 0
    children: int = 0
    pins: int = 0


class Run:
    """The first blocks of a chain, which stay where they are until it is let go of."""

    def __init__(self, memory: Blocks, places: Sequence[int]) -> None:
        self._memory, self._places = memory, places

    def __len__(self) -> int:
        return len(self._places)

    def block(self, at: int) -> Blocks:
        """u8[block_bytes]; not to be written to."""
        found: Blocks = self._memory[self._places[at]]
        return found

    def layer(self, layer: int, layers: int) -> Blocks:
        """u8[blocks, layer_bytes], a copy."""
        by_layer = self._memory.reshape(len(self._memory), layers, -1)
        found: Blocks = by_layer[list(self._places), layer]
        return found


class HeldBlocks:
    """Verbs: put, pinned, news. Used on the agent's event loop; memory of a Run may be read by threads.

    Memory is taken as it fills, `size` bytes at most; with less than a block's nothing is ever held. Keys are chained
    over model, layout, tenant and tokens, so a block is found by who may have it and by nobody else.
    """

    def __init__(self, size: int, block_bytes: int) -> None:
        self.most = min(size // block_bytes, MOST_BLOCKS)
        self._memory = np.empty((self.most, block_bytes), np.uint8)
        self._blocks: dict[bytes, _Block] = {}
        self._free = list(range(self.most))
        self._ends: list[tuple[int, bytes]] = []  # a heap of (used, key) of chains' ends; old entries are passed over
        self._now = 0
        self._untold: dict[bytes, None] = {}  # keys that are held and were not told, or the other way round

    def __len__(self) -> int:
        return len(self._blocks)

    def run(self, keys: Sequence[bytes]) -> int:
        """How many of the chain's first blocks are held."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in self._blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def lacks(self, key: bytes, parent: bytes | None) -> bool:
        """Whether `put` might take the block."""
        return self.most > 0 and key not in self._blocks and (parent is None or parent in self._blocks)

    def put(self, key: bytes, parent: bytes | None, block: Blocks) -> None:
        """Copies the block, where the one before it is held (None: it is the first) and there is, or can be made, room.
        One that is held already counts as used."""
        if (known := self._blocks.get(key)) is not None:
            self._use(known)
            return
        before = self._blocks.get(parent) if parent is not None else None
        if not self.most or (parent is not None and before is None):
            return
        if before is not None:
            before.children += 1  # from now on it can't be let go
        place = self._free.pop() if self._free else self._make_room()
        if place is None:
            if before is not None:
                self._lose_child(before)
            return
        self._memory[place] = block
        made = self._blocks[key] = _Block(key, place, before)
        self._use(made)
        self._changed(key)

    @contextmanager
    def pinned(self, keys: Sequence[bytes]) -> Iterator[Run]:
        """The chain's first blocks that are held: none of them goes before the end of this."""
        count = self.run(keys)
        if not count:
            yield Run(self._memory, ())
            return
        end = self._blocks[keys[count - 1]]
        end.pins += 1  # which keeps those before it: they have a child
        try:
            yield Run(self._memory, [self._blocks[key].place for key in keys[:count]])
        finally:
            end.pins -= 1
            self._use(end)

    def news(self, anew: bool, most: int) -> tuple[list[bytes], list[bytes]]:
        """Keys of blocks that are held, and of some that are not, since the last call; `most` of both together, the
        rest later. `anew`: to somebody who knows nothing yet."""
        if anew:
            self._untold = dict.fromkeys(self._blocks)
        changed = [key for key, _ in zip(self._untold, range(most), strict=False)]
        for key in changed:
            del self._untold[key]
        return [k for k in changed if k in self._blocks], [k for k in changed if k not in self._blocks]

    def check(self) -> None:
        """Integrity: free + held = all, and every block but a first one has its parent. For tests; raises
        AssertionError."""
        places = [block.place for block in self._blocks.values()]
        assert sorted(places + self._free) == list(range(self.most))
        held = set(self._blocks.values())
        for block in held:
            assert block.parent is None or block.parent in held
            assert block.children == sum(other.parent is block for other in held)

    def _changed(self, key: bytes) -> None:
        """It came, or went. Who comes and goes while nobody listens is no news."""
        if key in self._untold:
            del self._untold[key]
        else:
            self._untold[key] = None

    # --- who goes ---

    def _use(self, block: _Block) -> None:
        self._now += 1
        block.used = self._now
        self._maybe_end(block)

    def _lose_child(self, block: _Block) -> None:
        block.children -= 1
        self._maybe_end(block)

    def _maybe_end(self, block: _Block) -> None:
        if block.children or block.pins:
            return
        heappush(self._ends, (block.used, block.key))
        if len(self._ends) > 2 * len(self._blocks) + 64:
            self._ends = [(b.used, b.key) for b in self._blocks.values() if not b.children and not b.pins]
            heapify(self._ends)

    def _make_room(self) -> int | None:
        """The place of the end that was used least recently; None if all that could go is in use."""
        while self._ends:
            used, key = heappop(self._ends)
            block = self._blocks.get(key)
            if block is None or block.used != used or block.children or block.pins:
                continue
            del self._blocks[key]
            self._changed(key)
            if block.parent is not None:
                block.parent.used = max(block.parent.used, used)
                self._lose_child(block.parent)
            return block.place
        return None
