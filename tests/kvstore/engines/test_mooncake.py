"""Blocks in a pool: a real mooncake_master, and two members that reach each other over TCP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

pytest.importorskip(
    "mooncake.store", reason="Mooncake is not installed: pip install 'hostless[mooncake]'", exc_type=ImportError
)

from services.common.settings import SettingError
from services.kvstore.block import BadBlock
from services.kvstore.engines import Read, Write
from services.kvstore.engines.mooncake.engine import MooncakeEngine
from services.kvstore.engines.mooncake.pool import Pool, PoolOptions
from tests.kvstore.engines.contract import EngineContract, Subject, load, write
from tests.kvstore.mooncake_master import master

SEGMENT_BYTES = 64 << 20


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MooncakeEngine, MooncakeEngine]]:
    """Two members of one pool, each with memory of its own in it."""
    with master(tmp_path_factory.mktemp("mooncake") / "log") as (address, _):
        engines = [MooncakeEngine(Pool(PoolOptions(address, segment_bytes=SEGMENT_BYTES))) for _ in range(2)]
        yield engines[0], engines[1]
        for engine in engines:
            engine.close()


@pytest.fixture
def one(members: tuple[MooncakeEngine, MooncakeEngine]) -> Iterator[MooncakeEngine]:
    yield members[0]
    members[0]._pool._client.remove_all(True)


@pytest.fixture
def two(members: tuple[MooncakeEngine, MooncakeEngine]) -> MooncakeEngine:
    return members[1]


class TestContract(EngineContract):
    @pytest.fixture
    def subject(self, one: MooncakeEngine) -> Subject:
        return Subject(one, lambda: one, durable=False)


def test_a_block_of_one_member_is_read_by_the_other(one: MooncakeEngine, two: MooncakeEngine, tools: Any) -> None:
    blocks = tools.chain(4, length=4 << 20)
    assert one.put([write(block, tools.payload(block)) for block in blocks[:3]]) == [None] * 3
    assert two.find([block.key for block in blocks]) == [block.stored for block in blocks[:3]]
    assert [load(two, block) for block in blocks[:3]] == [tools.payload(block) for block in blocks[:3]]
    assert load(two, blocks[0], 65_536, 65_536) == tools.payload(blocks[0])[65_536:131_072]
    two.remove([blocks[2].key])
    assert one.find([block.key for block in blocks]) == [block.stored for block in blocks[:2]]
    with pytest.raises(BadBlock, match="does not have it"):
        load(one, blocks[2])


def test_an_object_that_is_no_block_or_another_is_never_taken(
    one: MooncakeEngine, two: MooncakeEngine, tools: Any
) -> None:
    block, other = tools.chain(2)
    foreign = np.frombuffer(tools.payload(other) + bytes(4096), np.uint8)
    assert one._pool.put([block.key.hex()], [[foreign.data]]) == [None]
    assert two.find([block.key]) == []
    with pytest.raises(BadBlock):
        load(two, block)
    assert one.remove([block.key]) == [None]
    assert one.put([write(other, tools.payload(other))]) == [None]
    into = bytearray(other.length + 4096)
    assert one._pool.get([other.key.hex()], [[memoryview(into)]]) == [None]
    into[-1] ^= 1
    assert one._pool.put([block.key.hex()], [[memoryview(into)]]) == [None]
    with pytest.raises(BadBlock, match="another block"):
        load(two, block)


def test_a_changed_byte_in_the_pool_is_seen(one: MooncakeEngine, tools: Any) -> None:
    (block,) = tools.chain(1, length=200_000)
    assert one.put([write(block, tools.payload(block))]) == [None]
    raw = bytearray(4096 + block.length)
    assert one._pool.get([block.key.hex()], [[memoryview(raw)]]) == [None]
    raw[-1] ^= 1
    one.remove([block.key])
    assert one._pool.put([block.key.hex()], [[memoryview(raw)]]) == [None]
    with pytest.raises(BadBlock, match="checksum"):
        load(one, block)
    assert load(one, block, 0, 65_536) == tools.payload(block)[:65_536]


def test_a_full_pool_refuses_and_takes_again_when_there_is_room(one: MooncakeEngine, tools: Any) -> None:
    blocks = tools.chain(40, length=4 << 20)
    data = np.zeros(4 << 20, np.uint8).data
    writes = [Write(block, data, crc32c(data)) for block in blocks]
    outcomes = [outcome for at in range(0, 40, 8) for outcome in one.put(writes[at : at + 8])]
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert refused
    assert all(isinstance(outcome, OSError) and outcome.errno == 28 for outcome in refused)
    stored = [block for block, outcome in zip(blocks, outcomes, strict=True) if outcome is None]
    one.remove([block.key for block in stored])
    assert one.put(writes[:4]) == [None] * 4


def test_replicas(tmp_path: Path, tools: Any) -> None:
    """Two copies of a block: it outlives either machine."""
    (block,) = tools.chain(1)
    with master(tmp_path / "log") as (address, _):
        first, second = (
            MooncakeEngine(Pool(PoolOptions(address, segment_bytes=SEGMENT_BYTES, replicas=2))) for _ in range(2)
        )
        assert first.put([write(block, tools.payload(block))]) == [None]
        first.close()
        assert load(second, block) == tools.payload(block)
        second.close()


def test_a_master_that_died_is_an_error_and_nothing_hangs(tmp_path: Path, tools: Any) -> None:
    blocks = tools.chain(2)
    with master(tmp_path / "log") as (address, process):
        engine = MooncakeEngine(Pool(PoolOptions(address, segment_bytes=SEGMENT_BYTES)))
        assert engine.put([write(blocks[0], tools.payload(blocks[0]))]) == [None]
        process.kill()
        process.wait()
        into = memoryview(bytearray(blocks[0].length))
        (outcome,) = engine.load([Read(blocks[0].key, blocks[0].length, 0, into)])
        assert isinstance(outcome, OSError)
        assert engine.find([blocks[0].key]) == []
        (outcome,) = engine.put([write(blocks[1], tools.payload(blocks[1]))])
        assert isinstance(outcome, OSError)
        engine.close()


def test_a_master_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingError, match=r"127\.0\.0\.1:1 can't be joined"):
        Pool(PoolOptions("127.0.0.1:1"))
