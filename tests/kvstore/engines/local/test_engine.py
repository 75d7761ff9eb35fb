"""The engine `local`: the contract, and what only it does."""

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.common.settings import SettingError
from services.kvstore import _segments
from services.kvstore.block import BadBlock, Block
from services.kvstore.engines import Read, Write
from services.kvstore.engines.local import LocalEngine, LocalOptions
from tests.kvstore.engines.contract import EngineContract, Subject, load, write
from tests.kvstore.engines.local.conftest import SMALL, segments, taken

MIB = 1 << 20
KINDS = {
    "one disk": ([""], SMALL),
    "three disks": (["a", "b", "c"], SMALL),
    "threads": ([""], LocalOptions(queue_depth=4, io="threads")),
    "limited": (["a", "b"], LocalOptions(write_limit_bytes_s=1 << 30)),
}


class TestContract(EngineContract):
    @pytest.fixture(params=KINDS)
    def subject(self, root: Path, request: pytest.FixtureRequest) -> Iterator[Subject]:
        names, options = KINDS[request.param]
        folders = [root / name for name in names]
        engines = [LocalEngine(folders, options)]

        def reopen() -> LocalEngine:
            engines[-1].close()
            engines.append(LocalEngine(folders, options))
            return engines[-1]

        engines[0].scan()
        yield Subject(engines[0], reopen)
        engines[-1].close()


def put(engine: LocalEngine, blocks: list[Block], tools: Any) -> None:
    assert engine.put([write(block, tools.payload(block)) for block in blocks]) == [None] * len(blocks)


@pytest.mark.parametrize("length", [64 << 10, 3 * MIB + 8192, 4 * MIB, 32 * MIB])
def test_aligned_memory_is_used_in_place(make: Any, tools: Any, length: int) -> None:
    engine = make()
    (block,) = tools.chain(1, length=length)
    with mmap.mmap(-1, length) as memory:
        view = memoryview(memory)
        view[:] = tools.payload(block)
        assert engine.put([Write(block, view, _segments.crc32c(view))]) == [None]
        view[:] = bytes(length)
        engine.register(view)
        assert engine.load([Read(block.key, length, 0, view)]) == [None]
        assert bytes(view) == tools.payload(block)
        layer = view[: 32 << 10]
        assert engine.load([Read(block.key, length, 32 << 10, layer)]) == [None]
        assert bytes(layer) == tools.payload(block)[32 << 10 : 64 << 10]
        engine.unregister(view)
        del layer
        view.release()


def test_usage_is_what_footprint_says(make: Any, root: Path, tools: Any) -> None:
    engine = make(folders=2)
    blocks = tools.chain(20, length=300_001)
    put(engine, blocks, tools)
    whole = sum(engine.footprint(block.length) for block in blocks)
    slack = 64 << 10  # pages of segments, footers, the file system's lists of holes
    assert whole <= taken(root) <= whole + slack
    assert engine.remove([block.key for block in blocks[5:]]) == [None] * 15
    assert taken(root) <= 5 * engine.footprint(300_001) + slack
    make(folders=2)
    assert taken(root) <= 5 * engine.footprint(300_001) + slack


def test_a_full_segment_is_followed_by_the_next_and_an_empty_one_goes(make: Any, root: Path, tools: Any) -> None:
    engine = make()
    blocks = tools.chain(20, length=4 * MIB)
    put(engine, blocks, tools)
    assert len(segments(root)) == 3
    engine.remove([block.key for block in blocks[:7]])
    assert len(segments(root)) == 2
    assert [load(engine, block) for block in blocks[7:]] == [tools.payload(block) for block in blocks[7:]]
    again = make()
    assert [load(again, block) for block in blocks[7:]] == [tools.payload(block) for block in blocks[7:]]
    again.remove([block.key for block in blocks])
    assert segments(root) == []


def test_a_scan_tells_the_oldest_first(make: Any, root: Path, tools: Any) -> None:
    engine = make(folders=3)
    blocks = tools.chain(12)
    for at in (3, 0, 2, 1):
        put(engine, blocks[3 * at : 3 * at + 3], tools)
    engine.close()
    engine = LocalEngine([root / str(number) for number in range(3)], SMALL)
    expected = [block.stored for at in (3, 0, 2, 1) for block in blocks[3 * at : 3 * at + 3]]
    assert engine.scan().blocks == expected
    put(engine, tools.chain(1, seed=3), tools)
    engine.close()
    engine = LocalEngine([root / str(number) for number in range(3)], SMALL)
    assert engine.scan().blocks == [*expected, tools.chain(1, seed=3)[0].stored]
    engine.close()


def test_a_block_put_twice_is_kept_once(make: Any, root: Path, tools: Any) -> None:
    engine = make()
    blocks = tools.chain(2, length=MIB)
    for _ in range(3):
        put(engine, blocks, tools)
    assert taken(root) < 3 * MIB
    assert load(make(), blocks[1]) == tools.payload(blocks[1])


def test_too_large_or_empty_is_refused(make: Any, root: Path, tools: Any) -> None:
    engine = make()
    for length in (0, engine.largest_block + 1):
        block = Block(b"k" * 16, b"p" * 16, 0, length, b"")
        (outcome,) = engine.put([Write(block, memoryview(bytes(length)), 0)])
        assert isinstance(outcome, BadBlock)
    assert segments(root) == []


def test_a_read_goes_on_when_its_segment_goes(make: Any, tools: Any) -> None:
    engine = make()
    blocks = tools.chain(2, length=MIB)
    put(engine, blocks, tools)
    with engine._places.using([blocks[0].key]) as (place,):
        engine.close_lanes()
        engine.remove([block.key for block in blocks])
        assert os.fstat(place.segment.fd).st_nlink == 1
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(place.segment.fd)


def test_one_store_a_folder(make: Any, root: Path) -> None:
    make()
    with pytest.raises(SettingError, match="in use by another store"):
        LocalEngine([root / "1", root / "0"])
    LocalEngine([root / "1"]).close()


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingError, match=str(tmp_path / "file")):
        LocalEngine([tmp_path / "file" / "store"])


def test_without_io_uring_it_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    class Refused:
        kind, why = "threads", "io_uring_setup: Operation not permitted"

    monkeypatch.setattr(_segments, "Channels", lambda *_: Refused())
    LocalEngine([tmp_path])
    assert "threads read and write" in caplog.text


def test_without_o_direct_it_says_so_and_works(
    make: Any, tools: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    really = os.open

    def open_buffered(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return really(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", open_buffered)
    engine = make()
    assert "page cache" in caplog.text
    blocks = tools.chain(3, length=300_000)
    put(engine, blocks, tools)
    engine = make()
    assert [load(engine, block) for block in blocks] == [tools.payload(block) for block in blocks]


def test_no_holes_no_store(tmp_path: Path, monkeypatch: Any) -> None:
    def punch(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(_segments, "punch", punch)
    with pytest.raises(SettingError, match="--engine files"):
        LocalEngine([tmp_path])


def test_segments_of_an_older_layout_give_their_room_back(
    make: Any, root: Path, tools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make().close()
    older = [root / "0" / "segments" / f"0000000{number}.seg" for number in (1, 2)]
    for path in older:
        path.write_bytes(b"HLSSEGM1".ljust(8192, b"\0"))
    with caplog.at_level("WARNING"):
        make()
    assert [path.exists() for path in older] == [False, False]
    (line,) = [record for record in caplog.records if "older layout" in record.message]
    assert (line.__dict__["segments"], line.__dict__["bytes"]) == (2, 16384)


def test_what_is_no_segment_file_is_left_alone(root: Path, tools: Any) -> None:
    (block,) = tools.chain(1)
    engine = LocalEngine([root], SMALL)
    put(engine, [block], tools)
    engine.close()
    folder = root / "segments"
    os.mkfifo(folder / "00000078-0123456789abcdef.seg")
    (folder / "00000079-0123456789abcdef.seg").mkdir()
    (folder / "00000080.seg").write_text("mine")
    engine = LocalEngine([root], SMALL)
    assert [found.key for found in engine.scan().blocks] == [block.key]
    engine.close()
    assert len(list(folder.iterdir())) == 4
