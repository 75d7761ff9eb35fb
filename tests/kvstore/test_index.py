"""The index against a naive model: same lookups, same victims, rules kept after every step."""

import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.common.keys import next_key, root_key
from services.kvstore._index import BlockIndex
from services.kvstore.block import Block
from tests.kvstore.effort import EFFORT

CAPACITY = 8000
OVERHEAD = 50
ROOT = root_key("model", "")


def size(block: Block) -> int:
    return OVERHEAD + block.length


def record(block: Block) -> bytes:
    return struct.pack("<16s16sIIII", block.key, block.parent, block.position, block.length, size(block), 0)


def add(index: BlockIndex, block: Block) -> None:
    index.add(block.key, block.parent, block.position, block.length, size(block))


class Naive:
    """The rules spelled out: a list of (block, last use), searched and sorted every time."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, Block] = {}
        self.used: dict[bytes, int] = {}
        self.pins: list[list[bytes]] = []
        self.clock = 0

    def touch(self, keys: list[bytes]) -> None:
        """Parents are used after their children; those before the run are used too."""
        order = list(reversed(keys))
        while order and self.blocks[order[-1]].position:
            order.append(self.blocks[order[-1]].parent)
        for key in order:
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

    def used_again(self, freed: list[bytes]) -> None:
        """A run was unpinned; its blocks that nobody else pins are used last, with what is before them."""
        free = [key for key in freed if not any(key in pinned for pinned in self.pins)]
        for key in reversed(free):
            self.clock += 1
            self.used[key] = self.clock
        before = self.blocks[freed[0]] if freed else None
        while before is not None and before.position:
            before = self.blocks[before.parent]
            self.clock += 1
            self.used[before.key] = self.clock

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

    def victims(self, need: int, reserved: int) -> list[bytes] | None:
        gone: list[bytes] = []
        total = sum(size(block) for block in self.blocks.values()) + reserved
        order = self.may_go()
        while total + need > CAPACITY:
            if (block := next(order, None)) is None:
                return None
            gone.append(block.key)
            total -= size(block)
        return gone

    def subtree(self, key: bytes) -> set[bytes]:
        return {key}.union(*(self.subtree(child) for child in self.children(key)))


class IndexAgainstModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.index, self.model = BlockIndex(CAPACITY, CAPACITY), Naive()
        self.pinned: list[bytes] = []
        self.reserved: list[int] = []
        self.chains = [_chain(seed) for seed in range(4)]

    def block(self, chain: int, position: int) -> Block:
        return self.chains[chain][position]

    @rule(chain=st.integers(0, 3), position=st.integers(0, 5))
    def store(self, chain: int, position: int) -> None:
        block = self.block(chain, position)
        if block.key in self.index or not self.model.has_parent(block):
            assert block.key in self.index or not self.index.may_follow(block.parent, block.position)
            return
        pins = self.index.pin_run(block.parent if block.position else b"")
        parent = [block.parent] if block.position else []
        self.model.touch(parent)
        self.model.pins.append(parent)
        assert self.index.root_of(block.parent, block.position) == ROOT
        expected = self.model.victims(size(block), sum(self.reserved))
        assert self.index.reserve(size(block), ROOT) == expected
        self.model.pins.pop()
        for key in expected or ():
            del self.model.blocks[key]
        self.index.unpin(pins)
        self.model.touch(parent)
        if expected is None:
            return
        self.index.unreserve(size(block), ROOT)
        add(self.index, block)
        self.model.blocks[block.key] = block
        self.model.touch([block.key])

    @rule(size=st.integers(1, 3000))
    def reserve(self, size: int) -> None:
        expected = self.model.victims(size, sum(self.reserved))
        assert self.index.reserve(size, ROOT) == expected
        if expected is not None:
            self.reserved.append(size)
            for key in expected:
                del self.model.blocks[key]

    @rule(amount=st.integers(1, 3000))
    def evict(self, amount: int) -> None:
        expected: list[bytes] = []
        for block in self.model.may_go():
            if amount <= sum(size(self.model.blocks[key]) for key in expected):
                break
            expected.append(block.key)
        assert self.index.evict(amount) == expected
        for key in expected:
            del self.model.blocks[key]

    @precondition(lambda self: self.reserved)
    @rule()
    def unreserve(self) -> None:
        self.index.unreserve(self.reserved.pop(), ROOT)

    @rule()
    def reserve_more_than_all(self) -> None:
        before = len(self.index)
        assert self.index.reserve(CAPACITY + 1, ROOT) is None
        assert len(self.index) == before

    @rule(chain=st.integers(0, 3), first=st.integers(0, 5), count=st.integers(0, 6), pin=st.booleans())
    def look_up(self, chain: int, first: int, count: int, pin: bool) -> None:
        keys = [block.key for block in self.chains[chain][first : first + count]]
        found = self.model.run(keys)
        if pin:
            pins = self.index.pin_run(b"".join(keys))
            blocks = self.index.pinned(pins, 0, len(found))
            assert blocks == [tuple(self.model.blocks[key].stored) for key in found]
            self.pinned.append(pins)
            self.model.pins.append(found)
        else:
            assert self.index.hit(b"".join(keys)) == len(found)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.pinned) - 1))
        self.index.unpin(self.pinned.pop(at))
        freed = self.model.pins.pop(at)
        self.model.used_again(freed)

    @rule(chain=st.integers(0, 3), position=st.integers(0, 5))
    def lose(self, chain: int, position: int) -> None:
        key = self.block(chain, position).key
        lost = self.index.drop(key)
        expected = self.model.subtree(key) if key in self.model.blocks else set()
        assert set(lost) == expected
        assert len(lost) == len(expected)
        for one in lost:
            assert not set(self.model.children(one)) & self.model.blocks.keys(), "a parent went first"
            del self.model.blocks[one]
        # a pin holds the entry that was lost, not one stored again under its key
        self.model.pins = [[key for key in pins if key not in expected] for pins in self.model.pins]

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "index"):
            return
        self.index.check()
        assert len(self.index) == len(self.model.blocks)
        assert self.index.used == sum(size(b) for b in self.model.blocks.values()) + sum(self.reserved)


IndexAgainstModel.TestCase.settings = settings(max_examples=40 * EFFORT, stateful_step_count=40, deadline=None)
TestIndex = IndexAgainstModel.TestCase


def _chain(seed: int, root: bytes = ROOT) -> list[Block]:
    parent, blocks = root, []
    generator = np.random.default_rng(seed)
    for position in range(6):
        tokens = generator.integers(0, 1000, 64).astype("<u4")
        key = next_key(parent, tokens)
        blocks.append(Block(key, parent, position, 100 + 300 * seed, tokens.tobytes()))
        parent = key
    return blocks


def test_rebuild_takes_chains_in_any_order_and_refuses_orphans() -> None:
    chain, other = _chain(1), _chain(2)
    index = BlockIndex(CAPACITY, CAPACITY)
    found = [*reversed(chain), other[4], other[2], other[0], other[0]]
    assert index.rebuild(b"".join(map(record, found))) == [other[4].key, other[2].key, other[0].key]
    assert index.hit(b"".join(block.key for block in chain)) == len(chain)
    index.check()


def test_rebuild_keeps_to_a_smaller_capacity_least_recently_used_first() -> None:
    old, new = _chain(1)[:3], _chain(3)[:2]
    index = BlockIndex(size(new[0]) * 2 + size(old[0]), CAPACITY)
    assert index.rebuild(b"".join(map(record, [*old, *new]))) == [old[2].key, old[1].key]
    index.check()


def test_a_root_evicts_its_own_blocks_when_its_share_is_used_up() -> None:
    mine, other = _chain(1), _chain(1, root_key("model", "other tenant"))
    quota = 3 * size(mine[0])
    index = BlockIndex(CAPACITY, quota)
    for block in (*mine[:2], *other[:3]):
        add(index, block)
    assert index.roots == 2
    assert index.reserve(size(mine[2]), ROOT) == []
    assert index.reserve(size(mine[3]), ROOT) == [mine[1].key]
    assert index.reserve(quota + 1, ROOT) is None
    assert index.hit(b"".join(block.key for block in other)) == 3, "the older blocks of others stay"
    for _ in range(2):
        index.unreserve(size(mine[2]), ROOT)
    assert index.drop(other[0].key) == [block.key for block in reversed(other[:3])]
    assert index.roots == 1
    index.check()


def test_memory_stays_bounded_however_often_blocks_come_and_go() -> None:
    """72 bytes an entry, an eighth of that ahead, and 8 to 16 of hash table."""
    count, index = 20_000, BlockIndex(1 << 40, 1 << 40)
    keys = [number.to_bytes(16, "little") for number in np.random.default_rng(0).permutation(3 * count).tolist()]
    for at, key in enumerate(keys):
        index.add(key, ROOT, 0, 100, 100)
        if at >= count:
            index.drop(keys[at - count])
    index.check()
    assert len(index) == count
    assert index.memory / count < 100


def test_pages_list_every_block_once() -> None:
    index, chain = BlockIndex(CAPACITY, CAPACITY), _chain(1)
    for block in chain:
        add(index, block)
    listed, cursor = [], 0
    while True:
        cursor, page = index.page(cursor, 4)
        listed += page
        if not cursor:
            break
    assert sorted(entry[:4] for entry in listed) == sorted(tuple(block.stored) for block in chain)


@pytest.mark.parametrize("call", ["hit", "pin_run"])
def test_keys_that_are_none_are_refused(call: str) -> None:
    with pytest.raises(ValueError, match="16"):
        getattr(BlockIndex(1, 1), call)(b"short")
