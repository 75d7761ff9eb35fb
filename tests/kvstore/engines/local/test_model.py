"""Any sequence of puts, loads, removals, restarts and crashes, beside a dictionary."""

import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.common.keys import next_key, root_key
from services.kvstore.block import BadBlock, Block
from services.kvstore.engines import Read, Write
from services.kvstore.engines.local import LocalEngine, LocalOptions
from services.kvstore.engines.local.record import footprint
from tests.kvstore.effort import EFFORT
from tests.kvstore.engines.local.conftest import crash, segments, taken

LENGTHS = (1, 4096, 5000, 65_536, 200_001, 1 << 20, 9 << 20)
SLACK = 16 << 10  # a segment's own page, its footer, the file system's list of its holes


def block_of(number: int) -> tuple[Block, bytes]:
    """The same block and bytes for a number, always."""
    rng = random.Random(number)
    length = LENGTHS[number % len(LENGTHS)]
    tokens = np.array([number, *range(63)], "<u4")
    parent = root_key("model", "tenant")
    return Block(next_key(parent, tokens), parent, 0, length, tokens.tobytes()), rng.randbytes(length)


numbers = st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True)


class Model(RuleBasedStateMachine):
    @initialize(folders=st.integers(1, 3), io=st.sampled_from(["auto", "threads"]), depth=st.integers(1, 5))
    def begin(self, folders: int, io: str, depth: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="store"))
        self.folders = [self.root / str(number) for number in range(folders)]
        self.options = LocalOptions(queue_depth=depth, segment_bytes=(32 << 20) + 8192, io=io)
        self.stored: dict[int, bytes] = {}
        self.order: list[int] = []
        self.engine = LocalEngine(self.folders, self.options)
        self.engine.scan()

    @rule(numbers=numbers, wrong=st.integers(0, 11))
    def put(self, numbers: list[int], wrong: int) -> None:
        numbers = [number for number in numbers if number not in self.stored]
        writes = []
        for at, number in enumerate(numbers):
            block, data = block_of(number)
            writes.append(Write(block, memoryview(data), crc32c(data) ^ (at == wrong)))
        for at, outcome in enumerate(self.engine.put(writes)):
            assert isinstance(outcome, BadBlock) == (at == wrong)
            if at != wrong:
                self.stored[numbers[at]] = block_of(numbers[at])[1]
                self.order.append(numbers[at])

    @rule(numbers=numbers)
    def remove(self, numbers: list[int]) -> None:
        assert self.engine.remove([block_of(number)[0].key for number in numbers]) == [None] * len(numbers)
        for number in numbers:
            if self.stored.pop(number, None) is not None:
                self.order.remove(number)

    @rule(numbers=numbers, data=st.data())
    def load(self, numbers: list[int], data: st.DataObject) -> None:
        reads, expected = [], []
        for number in numbers:
            block, content = block_of(number)
            begin = data.draw(st.integers(0, block.length - 1))
            end = data.draw(st.integers(begin + 1, block.length))
            reads.append(Read(block.key, block.length, begin, memoryview(bytearray(end - begin))))
            expected.append(content[begin:end] if number in self.stored else None)
        for read, outcome, content in zip(reads, self.engine.load(reads), expected, strict=True):
            if content is None:
                assert isinstance(outcome, BadBlock)
            else:
                assert outcome is None
                assert read.into == content

    @rule(gently=st.booleans())
    def restart(self, gently: bool) -> None:
        if gently:
            self.engine.close()
        else:
            crash(self.engine)
        self.engine = LocalEngine(self.folders, self.options)
        scan = self.engine.scan()
        assert scan.blocks == [block_of(number)[0].stored for number in self.order]
        assert scan.broken == 0
        files = segments(self.root)
        assert taken(self.root) <= sum(footprint(block.length) for block in scan.blocks) + SLACK * len(files)
        assert len(files) <= len(scan.blocks)

    @invariant()
    def all_is_there(self) -> None:
        if not hasattr(self, "engine"):
            return
        for number, content in self.stored.items():
            block, _ = block_of(number)
            into = bytearray(min(5000, block.length))
            assert self.engine.load([Read(block.key, block.length, block.length - len(into), memoryview(into))]) == [
                None
            ]
            assert into == content[-len(into) :]

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.root)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=5 * EFFORT, stateful_step_count=20, deadline=None)
