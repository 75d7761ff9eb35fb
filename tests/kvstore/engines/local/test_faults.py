"""A disk that fails or fills up: what is stored stays readable, what could not be stored leaves nothing."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.kvstore import _segments
from services.kvstore.block import BadBlock
from services.kvstore.engines.local import LocalEngine, LocalOptions
from tests.kvstore.engines.contract import load, write
from tests.kvstore.engines.local.conftest import SMALL, crash, segments, taken
from tests.kvstore.engines.local.faulty import FaultyChannels

MIB = 1 << 20


@pytest.fixture
def faulty(make: Callable[..., LocalEngine]) -> tuple[LocalEngine, FaultyChannels]:
    engine = make(folders=2)
    channels = FaultyChannels(engine.channels)
    engine.channels = channels  # type: ignore[assignment]
    return engine, channels


def test_a_block_that_could_not_be_written_leaves_nothing(faulty: Any, make: Any, root: Path, tools: Any) -> None:
    engine, channels = faulty
    blocks = tools.chain(8, length=200_000)
    writes = [write(block, tools.payload(block)) for block in blocks]
    channels.writing = lambda at, _: errno.EIO if at in (1, 4) else 0
    outcomes = engine.put(writes)
    for at, outcome in enumerate(outcomes):
        if at in (1, 4):
            assert isinstance(outcome, OSError)
            assert outcome.errno == errno.EIO
            assert ".seg" in str(outcome)
        else:
            assert outcome is None
    channels.writing = lambda at, _: 0
    assert taken(root) <= 6 * engine.footprint(200_000) + (64 << 10)
    assert engine.put([writes[1]]) == [None]
    there = [block for block in blocks if block is not blocks[4]]
    again = make(folders=2)
    for block in there:
        assert load(again, block) == tools.payload(block)
    with pytest.raises(BadBlock, match="gone"):
        load(again, blocks[4])


@pytest.mark.parametrize("end", ["closed", "crashed"])
def test_a_sync_that_failed_fails_its_blocks_and_no_others(faulty: Any, root: Path, tools: Any, end: str) -> None:
    engine, channels = faulty
    blocks = tools.chain(12, length=50_000)
    writes = [write(block, tools.payload(block)) for block in blocks]
    assert engine.put(writes[:4]) == [None] * 4
    channels.syncing = lambda at, _: errno.EIO if at == 0 else 0
    outcomes = engine.put(writes[4:8])
    assert sorted(outcome is None for outcome in outcomes) == [False, False, True, True]
    channels.syncing = lambda at, _: 0
    assert engine.put(writes[8:]) == [None] * 4
    assert len(segments(root)) == 3  # the one that failed is not appended to again
    there = [
        block for block, outcome in zip(blocks, [None] * 4 + outcomes + [None] * 4, strict=True) if outcome is None
    ]
    engine.channels = channels.real
    crash(engine) if end == "crashed" else engine.close()
    again = LocalEngine([root / "0", root / "1"], SMALL)
    assert again.scan().blocks == [block.stored for block in there]
    assert [load(again, block) for block in there] == [tools.payload(block) for block in there]
    again.close()


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, BadBlock), (errno.ENOMEM, OSError)])
def test_a_read_that_failed_says_whether_the_block_is_lost(faulty: Any, tools: Any, number: int, kind: Any) -> None:
    engine, channels = faulty
    blocks = tools.chain(2)
    assert engine.put([write(block, tools.payload(block)) for block in blocks]) == [None] * 2
    channels.reading = lambda at, _: number
    with pytest.raises(kind, match="can't read" if kind is BadBlock else os.strerror(number)):
        load(engine, blocks[0])
    channels.reading = lambda at, _: 0
    assert load(engine, blocks[0]) == tools.payload(blocks[0])


def test_a_segment_that_cannot_be_sealed_now_is_found_by_its_pages(make: Any, tools: Any, monkeypatch: Any) -> None:
    engine = make()
    blocks = tools.chain(3)
    assert engine.put([write(block, tools.payload(block)) for block in blocks]) == [None] * 3

    def few_files(name: Any, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as scarce:
        scarce.setattr("services.kvstore.engines.local.segment.os.open", few_files)
        engine.close_lanes()
    assert [load(engine, block) for block in blocks] == [tools.payload(block) for block in blocks]
    again = make()
    assert [load(again, block) for block in blocks] == [tools.payload(block) for block in blocks]


def test_a_disk_that_hangs_does_not_gather_puts(make: Any, tools: Any, monkeypatch: Any) -> None:
    engine = make()
    (block,) = tools.chain(1)
    lanes = [engine._lanes.get() for _ in range(engine._options.lanes)]
    monkeypatch.setattr("services.kvstore.engines.local.engine.LANE_WAIT_S", 0.01)
    (outcome,) = engine.put([write(block, tools.payload(block))])
    assert isinstance(outcome, OSError)
    assert outcome.errno == errno.ETIMEDOUT
    for lane in lanes:
        engine._lanes.put(lane)


def test_a_disk_without_room_leaves_the_work_to_the_others(make: Any, root: Path, tools: Any, monkeypatch: Any) -> None:
    engine = make(folders=3)
    blocks = tools.chain(9)
    writes = [write(block, tools.payload(block)) for block in blocks]
    assert engine.put(writes[:3]) == [None] * 3
    really = _segments.allocate

    def allocate(fd: int, offset: int, size: int) -> None:
        if "/1/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(fd, offset, size)

    monkeypatch.setattr(_segments, "allocate", allocate)
    assert engine.put(writes[3:]) == [None] * 6
    assert [load(engine, block) for block in blocks] == [tools.payload(block) for block in blocks]


def test_an_interrupted_put_leaves_nothing(make: Any, root: Path, tools: Any) -> None:
    engine = make()
    blocks = tools.chain(4)
    writes = [write(block, tools.payload(block)) for block in blocks]
    assert engine.put(writes[:1]) == [None]
    channels = FaultyChannels(engine.channels)

    def interrupt(at: int, request: Any) -> int:
        raise KeyboardInterrupt

    channels.syncing = interrupt
    engine.channels = channels
    with pytest.raises(KeyboardInterrupt):
        engine.put(writes[1:3])
    engine.channels = channels.real
    assert engine.put(writes[3:]) == [None]
    crash(engine)
    again = LocalEngine([root / "0"], SMALL)
    assert again.scan().blocks == [blocks[0].stored, blocks[3].stored]
    again.close()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system of 96 MiB of its own."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(96 * MIB)
    steps = [["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(folder)]]
    for step in steps:
        try:
            subprocess.run(step, check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"NOT TESTED: {step[0]} is not allowed here ({error}), so no disk could be filled")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)


def test_a_full_disk_refuses_and_recovers(full: Path, tools: Any) -> None:
    """Puts fail cleanly, loads go on, and what is removed makes room again; also over a crash."""
    folders = [full / "store"]
    engine = LocalEngine(folders, LocalOptions(queue_depth=4, segment_bytes=33 * MIB))
    engine.scan()
    blocks = tools.chain(40, length=4 * MIB)
    outcomes = []
    for at in range(0, 40, 4):
        outcomes += engine.put([write(block, tools.payload(block)) for block in blocks[at : at + 4]])
    stored = [block for block, outcome in zip(blocks, outcomes, strict=True) if outcome is None]
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert 15 <= len(stored) < 30
    assert all(isinstance(outcome, OSError) and outcome.errno == errno.ENOSPC for outcome in refused)
    for block in stored:
        assert load(engine, block) == tools.payload(block)
    assert engine.remove([block.key for block in stored[:5]]) == [None] * 5
    missing = [block for block in blocks if block not in stored][:4]
    assert engine.put([write(block, tools.payload(block)) for block in missing]) == [None] * 4
    there = stored[5:] + missing
    crash(engine)
    engine = LocalEngine(folders, SMALL)
    assert engine.scan().blocks == [block.stored for block in there]
    for block in there:
        assert load(engine, block) == tools.payload(block)
    engine.remove([block.key for block in there])
    engine.close()
    assert taken(full) == 0
