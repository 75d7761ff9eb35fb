"""Which blocks are stored, which may go: the store's state of mind, apart from any I/O.

Two rules hold after every call (`check` proves them): a block whose position is above 0 has its parent
here, and `used` never exceeds `capacity`. So eviction takes leaves, least recently used first, and a
chain found from its first key has no holes.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.kvstore.block import Block


@dataclass(slots=True, eq=False)
class Entry:
    block: Block
    pins: int = 0
    recency: int = 0
    children: set[bytes] = field(default_factory=set)


class Index:
    """Blocks by key, with pins, recency and exact usage in bytes.

    `used` counts stored blocks and `reserve`d room for blocks on their way to disk.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.reserved = 0
        self.stored = 0
        self._entries: dict[bytes, Entry] = {}
        self._clock = 0
        self._oldest: list[tuple[int, bytes]] = []  # lazy heap: stale pairs are skipped when they surface

    @property
    def used(self) -> int:
        return self.stored + self.reserved

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def get(self, key: bytes) -> Block | None:
        entry = self._entries.get(key)
        return entry.block if entry else None

    def run(self, keys: Iterable[bytes]) -> list[Block]:
        """The blocks of the longest run of `keys`, from the first, that is stored; now the most recently used."""
        found = []
        for key in keys:
            if (entry := self._entries.get(key)) is None:
                break
            found.append(entry)
        for entry in reversed(found):  # a parent is never older than its child
            self._touch(entry)
        return [entry.block for entry in found]

    def may_follow(self, block: Block) -> bool:
        """Whether the block's parent is stored, if it must be."""
        if block.position == 0:
            return True
        parent = self._entries.get(block.parent)
        return parent is not None and parent.block.position == block.position - 1

    def add(self, block: Block) -> None:
        """Makes a block visible. Its room is taken from what was reserved, or must be free."""
        if block.key in self._entries or not self.may_follow(block):
            raise ValueError(f"block {block.key.hex()} is here already, or its parent is not")
        if self.used + block.file_bytes > self.capacity:
            raise ValueError(f"no room reserved for block {block.key.hex()}")
        self._link(Entry(block))

    def pin(self, keys: Iterable[bytes]) -> list[Entry]:
        """Keeps stored blocks from eviction until `unpin` of what this returns. A lost block can't be kept."""
        entries = [self._entries[key] for key in keys]
        for entry in entries:
            entry.pins += 1
        return entries

    def unpin(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            entry.pins -= 1
            if self._entries.get(entry.block.key) is entry:
                self._offer(entry)

    def reserve(self, size: int) -> list[Block] | None:
        """Reserves `size` bytes. Returns the blocks evicted for it, leaves first, whose files must go before
        the room is used; or None, and then nothing was evicted: larger than the store, or the rest is pinned."""
        if size > self.capacity:
            return None
        evicted: list[Entry] = []
        while self.used + size > self.capacity:
            victim = self._pop_oldest_leaf()
            if victim is None:
                for entry in reversed(evicted):
                    self._link(entry)
                return None
            self._unlink(victim)
            evicted.append(victim)
        self.reserved += size
        return [entry.block for entry in evicted]

    def evict(self, size: int) -> list[Block]:
        """Evicts `size` bytes or a little more, leaves first, or as much as is not pinned; the files must go."""
        evicted: list[Block] = []
        while size > 0 and (victim := self._pop_oldest_leaf()) is not None:
            self._unlink(victim)
            evicted.append(victim.block)
            size -= victim.block.file_bytes
        return evicted

    def unreserve(self, size: int) -> None:
        self.reserved -= size

    def drop(self, key: bytes) -> list[Block]:
        """Removes a lost block and all that hangs on it, pinned or not; children before parents."""
        if (top := self._entries.get(key)) is None:
            return []
        lost, frontier = [], [top]
        while frontier:
            entry = frontier.pop()
            lost.append(entry)
            frontier.extend(self._entries[child] for child in entry.children)
        lost.reverse()
        for entry in lost:
            self._unlink(entry)
        return [entry.block for entry in lost]

    def rebuild(self, blocks: Sequence[Block]) -> list[Block]:
        """Takes in the blocks found on disk, least recently used first. Returns those that are no use
        (no parent) or don't fit any more, children before parents; their files must go."""
        unwanted: list[Block] = []
        limit, self.capacity = self.capacity, self.capacity + sum(block.file_bytes for block in blocks)
        for block in sorted(blocks, key=lambda b: b.position):
            if self.may_follow(block):
                self.add(block)
            else:
                unwanted.insert(0, block)
        for block in blocks:
            if (entry := self._entries.get(block.key)) is not None:
                self._touch(entry)
        self.capacity = limit
        return unwanted + (self.reserve(0) or [])

    def check(self) -> None:
        """Raises AssertionError unless the two rules hold and the sums are right."""
        entries = self._entries
        assert self.stored == sum(entry.block.file_bytes for entry in entries.values())
        assert 0 <= self.reserved <= self.used <= self.capacity
        for key, entry in entries.items():
            assert self.may_follow(entry.block), f"{key.hex()} outlived its parent"
            assert all(entries[child].block.parent == key for child in entry.children)
        assert sum(len(entry.children) for entry in entries.values()) == sum(
            1 for entry in entries.values() if self._parent(entry) is not None
        )

    def _parent(self, entry: Entry) -> Entry | None:
        return self._entries.get(entry.block.parent) if entry.block.position else None

    def _link(self, entry: Entry) -> None:
        block = entry.block
        self._entries[block.key] = entry
        self.stored += block.file_bytes
        if (parent := self._parent(entry)) is not None:
            parent.children.add(block.key)
        if entry.recency:
            self._offer(entry)
        else:
            self._touch(entry)

    def _unlink(self, entry: Entry) -> None:
        block = entry.block
        del self._entries[block.key]
        self.stored -= block.file_bytes
        if (parent := self._parent(entry)) is not None:
            parent.children.discard(block.key)
            self._offer(parent)

    def _touch(self, entry: Entry) -> None:
        self._clock += 1
        entry.recency = self._clock
        self._offer(entry)

    def _evictable(self, entry: Entry) -> bool:
        return not entry.pins and not entry.children

    def _offer(self, entry: Entry) -> None:
        if not self._evictable(entry):
            return
        heapq.heappush(self._oldest, (entry.recency, entry.block.key))
        if len(self._oldest) > 2 * len(self._entries) + 64:
            self._oldest = [(e.recency, key) for key, e in self._entries.items() if self._evictable(e)]
            heapq.heapify(self._oldest)

    def _pop_oldest_leaf(self) -> Entry | None:
        while self._oldest:
            recency, key = heapq.heappop(self._oldest)
            entry = self._entries.get(key)
            if entry is not None and entry.recency == recency and self._evictable(entry):
                return entry
        return None
