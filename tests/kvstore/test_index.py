"""The index against a naive model: same lookups, same victims, rules kept after every step."""

from collections.abc import Iterator

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.common.keys import next_key, root_key
from services.kvstore.block import Block
from services.kvstore.index import Entry, Index

CAPACITY = 8000


class Naive:
    """The rules spelled out: a list of (block, last use), searched and sorted every time."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, Block] = {}
        self.used: dict[bytes, int] = {}
        self.pins: list[list[bytes]] = []
        self.clock = 0

    def touch(self, keys: list[bytes]) -> None:
        for key in reversed(keys):
            self.clock += 1
            self.used[key] = self.clock

    def run(self, keys: list[bytes]) -> list[bytes]:
        found = []
        for key in keys:
            if key not in self.blocks:
                break
            found.append(key)
        self.touch(found)
        return found

    def has_parent(self, block: Block) -> bool:
        return block.position == 0 or block.parent in self.blocks

    def children(self, key: bytes) -> list[bytes]:
        return [k for k, block in self.blocks.items() if block.position and block.parent == key]

    def may_go(self) -> Iterator[Block]:
        """What eviction takes, in its order, until nothing is free."""
        gone: list[bytes] = []
        while free := [
            key
            for key in self.blocks
            if key not in gone
            and not any(key in pinned for pinned in self.pins)
            and all(child in gone for child in self.children(key))
        ]:
            gone.append(min(free, key=lambda key: self.used[key]))
            yield self.blocks[gone[-1]]

    def victims(self, size: int, reserved: int) -> list[bytes] | None:
        gone: list[bytes] = []
        total = sum(block.file_bytes for block in self.blocks.values()) + reserved
        order = self.may_go()
        while total + size > CAPACITY:
            if (block := next(order, None)) is None:
                return None
            gone.append(block.key)
            total -= block.file_bytes
        return gone

    def subtree(self, key: bytes) -> set[bytes]:
        return {key}.union(*(self.subtree(child) for child in self.children(key)))


class IndexAgainstModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.index, self.model = Index(CAPACITY), Naive()
        self.pinned: list[list[Entry]] = []
        self.reserved: list[int] = []
        self.chains = [_chain(seed) for seed in range(4)]

    def block(self, chain: int, position: int) -> Block:
        return self.chains[chain][position]

    @rule(chain=st.integers(0, 3), position=st.integers(0, 5))
    def store(self, chain: int, position: int) -> None:
        block = self.block(chain, position)
        if block.key in self.index or not self.model.has_parent(block):
            assert block.key in self.index or not self.index.may_follow(block)
            return
        parent = self.index.pin([block.parent] if block.position else [])
        self.model.pins.append([block.parent])
        expected = self.model.victims(block.file_bytes, sum(self.reserved))
        got = self.index.reserve(block.file_bytes)
        assert (None if got is None else [b.key for b in got]) == expected
        self.model.pins.pop()
        self.index.unpin(parent)
        if got is None or expected is None:
            return
        for key in expected:
            del self.model.blocks[key]
        self.index.unreserve(block.file_bytes)
        self.index.add(block)
        self.model.blocks[block.key] = block
        self.model.touch([block.key])

    @rule(size=st.integers(1, 3000))
    def reserve(self, size: int) -> None:
        expected = self.model.victims(size, sum(self.reserved))
        got = self.index.reserve(size)
        assert (None if got is None else [b.key for b in got]) == expected
        if expected is not None:
            self.reserved.append(size)
            for key in expected:
                del self.model.blocks[key]

    @rule(size=st.integers(1, 3000))
    def evict(self, size: int) -> None:
        expected: list[bytes] = []
        left = size
        for block in self.model.may_go():
            if left <= 0:
                break
            expected.append(block.key)
            left -= block.file_bytes
        assert [block.key for block in self.index.evict(size)] == expected
        for key in expected:
            del self.model.blocks[key]

    @precondition(lambda self: self.reserved)
    @rule()
    def unreserve(self) -> None:
        self.index.unreserve(self.reserved.pop())

    @rule()
    def reserve_more_than_all(self) -> None:
        before = len(self.index)
        assert self.index.reserve(CAPACITY + 1) is None
        assert len(self.index) == before

    @rule(chain=st.integers(0, 3), first=st.integers(0, 5), count=st.integers(0, 6), pin=st.booleans())
    def look_up(self, chain: int, first: int, count: int, pin: bool) -> None:
        keys = [block.key for block in self.chains[chain][first : first + count]]
        found = [block.key for block in self.index.run(keys)]
        assert found == self.model.run(keys)
        if pin:
            self.pinned.append(self.index.pin(found))
            self.model.pins.append(found)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.pinned) - 1))
        self.index.unpin(self.pinned.pop(at))
        self.model.pins.pop(at)

    @rule(chain=st.integers(0, 3), position=st.integers(0, 5))
    def lose(self, chain: int, position: int) -> None:
        key = self.block(chain, position).key
        lost = self.index.drop(key)
        expected = self.model.subtree(key) if key in self.model.blocks else set()
        assert {block.key for block in lost} == expected
        for block in lost:
            assert not set(self.model.children(block.key)) & self.model.blocks.keys(), "a parent went first"
            del self.model.blocks[block.key]
        # a pin holds the entry that was lost, not one stored again under its key
        self.model.pins = [[key for key in pins if key not in expected] for pins in self.model.pins]

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "index"):
            return
        self.index.check()
        assert len(self.index) == len(self.model.blocks)
        assert self.index.used == sum(b.file_bytes for b in self.model.blocks.values()) + sum(self.reserved)


IndexAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestIndex = IndexAgainstModel.TestCase


def _chain(seed: int) -> list[Block]:
    parent, blocks = root_key("model", ""), []
    generator = np.random.default_rng(seed)
    for position in range(6):
        tokens = generator.integers(0, 1000, 64).astype("<u4")
        key = next_key(parent, tokens)
        blocks.append(Block(key, parent, position, 100 + 300 * seed, tokens.tobytes()))
        parent = key
    return blocks


def test_rebuild_takes_chains_in_any_order_and_refuses_orphans() -> None:
    chain, other = _chain(1), _chain(2)
    index = Index(CAPACITY)
    unwanted = index.rebuild([*reversed(chain), other[4], other[2], other[0]])
    assert unwanted == [other[4], other[2]]
    assert [block.key for block in index.run(b.key for b in chain)] == [b.key for b in chain]
    index.check()


def test_rebuild_keeps_to_a_smaller_capacity_least_recently_used_first() -> None:
    old, new = _chain(1)[:3], _chain(3)[:2]
    index = Index(new[0].file_bytes * 2 + old[0].file_bytes)
    unwanted = index.rebuild([*old, *new])
    assert unwanted == [old[2], old[1]]
    index.check()
