"""Blocks in files: the contract, and what only files do."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.common.settings import SettingError
from services.kvstore.block import BadBlock
from services.kvstore.engines import Scan
from services.kvstore.engines.files.engine import FileEngine
from services.kvstore.engines.page import PAGE_BYTES
from tests.kvstore.engines.contract import EngineContract, Subject, load, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def engine(root: Path) -> Iterator[FileEngine]:
    engine = FileEngine(root)
    engine.scan()
    yield engine
    engine.close()


class TestContract(EngineContract):
    @pytest.fixture(params=[False, True], ids=["alone", "shared"])
    def subject(self, root: Path, request: pytest.FixtureRequest) -> Iterator[Subject]:
        engines = [FileEngine(root, shared=request.param)]

        def reopen() -> FileEngine:
            engines[-1].close()
            engines.append(FileEngine(root, shared=request.param))
            return engines[-1]

        engines[0].scan()
        yield Subject(engines[0], reopen)
        engines[-1].close()


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]


def path(root: Path, key: bytes) -> Path:
    return root / "blocks" / key.hex()[0] / key.hex()


def test_a_scan_tells_the_oldest_first_and_usage_is_exact(root: Path, engine: FileEngine, tools: Any) -> None:
    blocks = tools.chain(3, length=600_000)
    engine.put([write(block, tools.payload(block)) for block in blocks])
    for age, block in enumerate(blocks):
        os.utime(path(root, block.key), ns=(1, 100 - age))
    assert engine.scan() == Scan([block.stored for block in reversed(blocks)], 0)
    assert sum(file.stat().st_size for file in files(root)) == sum(engine.footprint(b.length) for b in blocks)


@pytest.mark.parametrize("size", [0, 10, PAGE_BYTES, PAGE_BYTES + 5000, PAGE_BYTES + 20_001])
def test_a_file_of_the_wrong_length_is_thrown_away(root: Path, engine: FileEngine, tools: Any, size: int) -> None:
    (block,) = tools.chain(1)
    engine.put([write(block, tools.payload(block))])
    os.truncate(path(root, block.key), size)
    if size < PAGE_BYTES + block.length:
        with pytest.raises(BadBlock):
            load(engine, block)
    assert engine.scan() == Scan([], 1)
    assert files(root) == []


def test_a_file_under_another_name_is_thrown_away(root: Path, engine: FileEngine, tools: Any) -> None:
    one, two = tools.chain(2)
    engine.put([write(one, tools.payload(one)), write(two, tools.payload(two))])
    os.replace(path(root, one.key), path(root, two.key))
    with pytest.raises(BadBlock, match="another block"):
        load(engine, two)
    assert engine.scan() == Scan([], 1)


@pytest.mark.parametrize("at", [0, 100, 1000, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 149_999])
def test_a_flipped_bit_is_seen_on_load(root: Path, engine: FileEngine, tools: Any, at: int) -> None:
    (block,) = tools.chain(1, length=150_000)
    engine.put([write(block, tools.payload(block))])
    data = bytearray(path(root, block.key).read_bytes())
    data[at] ^= 4
    path(root, block.key).write_bytes(data)
    with pytest.raises(BadBlock):
        load(engine, block)
    if at > PAGE_BYTES:
        assert load(engine, block, 0, 65_536) == tools.payload(block)[:65_536], "the piece is whole"
        with pytest.raises(BadBlock):
            load(engine, block, 149_000, 1000)


def test_left_overs_of_a_dead_writer_are_removed_and_those_of_a_live_one_stay(root: Path, tools: Any) -> None:
    script = (
        "import os, sys; from pathlib import Path; from services.kvstore.engines.files.tree import Tree\n"
        f"tree = Tree(Path({str(root)!r}), True); tree.temporary().write_bytes(b'half'); print('ready', flush=True)\n"
        "sys.stdin.read(); os._exit(9)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        engine = FileEngine(root, shared=True)
        assert engine.scan() == Scan([], 0)
        assert len(files(root)) == 1, "its writer lives"
        other.communicate()
    assert engine.scan() == Scan([], 0)
    assert files(root) == []
    engine.close()
    assert list((root / "writing").iterdir()) == []


def test_what_an_older_layout_left_goes(root: Path, engine: FileEngine, tools: Any) -> None:
    old = root / "blocks" / "ab" / "cd"
    old.mkdir(parents=True)
    (old / ("abcd" + 28 * "0")).write_bytes(b"HLSBLOCK of version 1")
    (root / "writing" / "0").write_bytes(b"half")
    assert engine.scan() == Scan([], 0)
    assert files(root) == []
    assert not old.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["pwritev", "fsync", "rename", "posix_fallocate"])
def test_a_failing_disk_leaves_nothing(
    root: Path, engine: FileEngine, tools: Any, call: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = tools.chain(2)
    writes = [write(block, tools.payload(block)) for block in blocks]

    def fail(*arguments: object, **named: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        outcomes = engine.put(writes)
    assert [getattr(outcome, "errno", 0) for outcome in outcomes] == [number, number]
    assert files(root) == []
    assert engine.put(writes) == [None, None]
    assert [load(engine, block) for block in blocks] == [tools.payload(block) for block in blocks]


def test_a_disk_that_writes_short_is_written_to_the_end(
    engine: FileEngine, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = tools.chain(1)
    whole = os.pwritev
    with monkeypatch.context() as slow:
        slow.setattr(os, "pwritev", lambda file, parts, at: whole(file, [parts[0][:4096]], at))
        assert engine.put([write(block, tools.payload(block))]) == [None]
    assert load(engine, block) == tools.payload(block)


def test_a_folder_where_a_block_belongs_does_not_keep_a_store_from_starting(
    root: Path, engine: FileEngine, tools: Any
) -> None:
    first, second = tools.chain(2)
    engine.put([write(first, tools.payload(first))])
    (path(root, second.key) / "more").mkdir(parents=True)
    assert engine.scan() == Scan([first.stored], 1)
    (outcome,) = engine.put([write(second, tools.payload(second))])
    assert isinstance(outcome, OSError)
    (path(root, second.key) / "more").rmdir()
    path(root, second.key).rmdir()
    assert engine.put([write(second, tools.payload(second))]) == [None]


def test_one_store_a_folder_unless_all_share_it(root: Path) -> None:
    engine = FileEngine(root)
    for shared in (False, True):
        with pytest.raises(SettingError, match="in use by another store"):
            FileEngine(root, shared)
    engine.close()
    one, two = FileEngine(root, True), FileEngine(root, True)
    with pytest.raises(SettingError, match="--shared"):
        FileEngine(root)
    one.close()
    two.close()


def test_a_block_of_another_store_is_found_until_it_vanishes(root: Path, tools: Any) -> None:
    one, two = FileEngine(root, True), FileEngine(root, True)
    blocks = tools.chain(3)
    one.put([write(block, tools.payload(block)) for block in blocks[:2]])
    keys = [block.key for block in blocks]
    assert two.find(keys) == [block.stored for block in blocks[:2]]
    assert load(two, blocks[1]) == tools.payload(blocks[1])
    one.remove([keys[1]])
    assert two.find(keys) == [blocks[0].stored]
    with pytest.raises(BadBlock, match="gone"):
        load(two, blocks[1])
    one.close()
    two.close()


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingError, match=str(tmp_path / "file")):
        FileEngine(tmp_path / "file" / "store")


def test_what_cannot_be_read_now_is_not_thrown_away(root: Path, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = tools.chain(2)
    engine = FileEngine(root)
    assert engine.put([write(block, tools.payload(block)) for block in blocks]) == [None, None]
    engine.close()
    really_open = os.open

    def few_files(name: Path, *rest: Any) -> int:
        if name in [path(root, block.key) for block in blocks]:
            raise OSError(errno.EMFILE, "Too many open files")
        return really_open(name, *rest)

    for opens, found in ((few_files, 0), (really_open, 2)):
        monkeypatch.setattr(os, "open", opens)
        again = FileEngine(root)
        scan = again.scan()
        again.close()
        assert (len(scan.blocks), scan.broken) == (found, 0)
