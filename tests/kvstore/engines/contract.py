"""What every storage engine must do, as one class of tests. An engine's own test module subclasses `EngineContract` and
gives it the fixture `subject`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from crc32c import crc32c

from services.kvstore.block import BadBlock, Block
from services.kvstore.engines import Read, StorageEngine, Write

LENGTHS = (1, 4095, 4096, 20_000, 65_536, 300_001)


@dataclass
class Subject:
    """An engine that was scanned, and how to open it again on the same disk. What `reopen` returns was not scanned."""

    engine: StorageEngine
    reopen: Callable[[], StorageEngine]
    durable: bool = True
    """Blocks outlive the process, and `scan` finds them."""


def write(block: Block, data: bytes) -> Write:
    return Write(block, memoryview(data), crc32c(data))


def load(engine: StorageEngine, block: Block, offset: int = 0, length: int | None = None) -> bytes:
    """Raises what the engine answers."""
    into = bytearray(block.length - offset if length is None else length)
    (outcome,) = engine.load([Read(block.key, block.length, offset, memoryview(into))])
    if outcome is not None:
        raise outcome
    return bytes(into)


class EngineContract:
    @pytest.mark.parametrize("length", LENGTHS)
    def test_what_was_put_is_loaded(self, subject: Subject, tools: Any, length: int) -> None:
        blocks = tools.chain(3, length=length)
        assert subject.engine.put([write(block, tools.payload(block)) for block in blocks]) == [None] * 3
        assert [load(subject.engine, block) for block in blocks] == [tools.payload(block) for block in blocks]
        assert subject.engine.footprint(length) >= length

    def test_slices(self, subject: Subject, tools: Any) -> None:
        (block,) = tools.chain(1, length=700_000)
        data = tools.payload(block)
        assert subject.engine.put([write(block, data)]) == [None]
        for offset, length in [(0, 1), (0, 65_536), (65_536, 131_072), (4096, 4096), (699_999, 1), (100, 600_000)]:
            assert load(subject.engine, block, offset, length) == data[offset : offset + length]
        with pytest.raises(BadBlock):
            load(subject.engine, block, 699_999, 2)

    def test_a_block_of_another_length_or_key_is_bad(self, subject: Subject, tools: Any) -> None:
        block, other = tools.chain(2)
        assert subject.engine.put([write(block, tools.payload(block))]) == [None]
        with pytest.raises(BadBlock):
            load(subject.engine, Block(block.key, block.parent, 0, block.length - 1, block.tokens))
        with pytest.raises(BadBlock):
            load(subject.engine, other)
        assert load(subject.engine, block) == tools.payload(block)

    def test_a_batch_is_answered_in_order(self, subject: Subject, tools: Any) -> None:
        blocks = tools.chain(5)
        writes = [write(block, tools.payload(block)) for block in blocks]
        writes[1] = Write(blocks[1], writes[1].data, writes[1].crc ^ 1)
        writes[3] = Write(blocks[3], writes[3].data[:-1], writes[3].crc)
        outcomes = subject.engine.put(writes)
        assert [type(outcome) for outcome in outcomes] == [type(None), BadBlock, type(None), BadBlock, type(None)]
        buffers = [bytearray(block.length) for block in blocks]
        reads = [Read(b.key, b.length, 0, memoryview(into)) for b, into in zip(blocks, buffers, strict=True)]
        outcomes = subject.engine.load(reads)
        assert [outcome is None for outcome in outcomes] == [True, False, True, False, True]
        for at in (0, 2, 4):
            assert buffers[at] == tools.payload(blocks[at])

    def test_removed_is_gone_and_may_come_back(self, subject: Subject, tools: Any) -> None:
        blocks = tools.chain(3)
        writes = [write(block, tools.payload(block)) for block in blocks]
        subject.engine.put(writes)
        assert subject.engine.remove([blocks[2].key, blocks[1].key]) == [None, None]
        assert subject.engine.remove([blocks[2].key, b"n" * 16]) == [None, None]
        for block in blocks[1:]:
            with pytest.raises(BadBlock):
                load(subject.engine, block)
        assert subject.engine.put(writes[1:]) == [None, None]
        assert [load(subject.engine, block) for block in blocks] == [tools.payload(block) for block in blocks]

    def test_a_restart_finds_what_is_whole(self, subject: Subject, tools: Any) -> None:
        if not subject.durable:
            pytest.skip("this engine's blocks end with the pool, and no scan lists them")
        blocks = tools.chain(4)
        subject.engine.put([write(block, tools.payload(block)) for block in blocks[:2]])
        subject.engine.put([write(block, tools.payload(block)) for block in blocks[2:]])
        subject.engine.put([Write(tools.chain(1, seed=5)[0], memoryview(b"x" * 20_000), 1)])
        subject.engine.remove([blocks[3].key])
        again = subject.reopen()
        scan = again.scan()
        assert sorted(scan.blocks) == sorted(block.stored for block in blocks[:3])
        assert scan.broken == 0
        assert [load(again, block) for block in blocks[:3]] == [tools.payload(block) for block in blocks[:3]]

    def test_many_threads_at_once(self, subject: Subject, tools: Any) -> None:
        chains = [tools.chain(8, seed=seed, length=70_000) for seed in range(6)]

        def work(chain: list[Block]) -> bool:
            assert subject.engine.put([write(block, tools.payload(block)) for block in chain]) == [None] * 8
            right = all(load(subject.engine, block) == tools.payload(block) for block in chain)
            subject.engine.remove([block.key for block in reversed(chain[4:])])
            return right

        with ThreadPoolExecutor(6) as threads:
            assert all(threads.map(work, chains))
        for chain in chains:
            assert load(subject.engine, chain[3]) == tools.payload(chain[3])

    def test_registered_memory_works_as_any_other(self, subject: Subject, tools: Any, region: Any) -> None:
        (block,) = tools.chain(1)
        memory = region.view.data
        subject.engine.register(memory)
        memory[: block.length] = tools.payload(block)
        data = memory[: block.length]
        assert subject.engine.put([Write(block, data, crc32c(data))]) == [None]
        into = memory[5 * block.length : 6 * block.length]
        assert subject.engine.load([Read(block.key, block.length, 0, into)]) == [None]
        assert bytes(into) == tools.payload(block)
        for _ in range(2):
            subject.engine.unregister(memory)
