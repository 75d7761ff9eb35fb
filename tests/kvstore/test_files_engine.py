"""Blocks in files: whole or not there, whatever happened to the writer or the file."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from services.common.settings import SettingError
from services.kvstore.block import HEADER_BYTES, BadBlock, Block
from services.kvstore.engines.files import FileEngine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]


def put(engine: FileEngine, block: Block, data: bytes) -> None:
    engine.put(block, iter([memoryview(data[:7000]), memoryview(data[7000:])]), crc32c(data))


def load(engine: FileEngine, block: Block) -> bytes:
    out = bytearray(block.length)

    def sink(at: int, piece: memoryview) -> None:
        out[at : at + len(piece)] = piece

    engine.load(block, sink)
    return bytes(out)


def test_what_was_put_is_found_after_a_restart_oldest_first(root: Path, tools: Any) -> None:
    blocks = tools.chain(3, length=600_000)
    engine = FileEngine(root)
    assert engine.scan() == ([], 0)
    for age, block in enumerate(blocks):
        put(engine, block, tools.payload(block))
        os.utime(engine._path(block.key), ns=(1, 100 - age))
    assert sum(path.stat().st_size for path in files(root)) == sum(block.file_bytes for block in blocks)
    engine.close()
    engine = FileEngine(root)
    assert engine.scan() == (blocks[::-1], 0)
    assert [load(engine, block) for block in blocks] == [tools.payload(block) for block in blocks]
    engine.remove(blocks[0].key)
    engine.remove(blocks[0].key)
    with pytest.raises(BadBlock, match="gone"):
        load(engine, blocks[0])
    engine.close()


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES, HEADER_BYTES + 5000, HEADER_BYTES + 20_001])
def test_a_file_of_the_wrong_length_is_thrown_away(root: Path, tools: Any, size: int) -> None:
    block = tools.chain(1)[0]
    engine = FileEngine(root)
    put(engine, block, tools.payload(block))
    os.truncate(engine._path(block.key), size)
    if size < HEADER_BYTES + block.length:
        with pytest.raises(BadBlock):
            load(engine, block)
    assert engine.scan() == ([], 1)
    assert files(root) == []
    engine.close()


def test_a_file_under_another_name_is_thrown_away(root: Path, tools: Any) -> None:
    one, two = tools.chain(2)
    engine = FileEngine(root)
    put(engine, one, tools.payload(one))
    put(engine, two, tools.payload(two))
    os.replace(engine._path(one.key), engine._path(two.key))
    with pytest.raises(BadBlock, match="another block"):
        load(engine, two)
    assert engine.scan() == ([], 1)
    engine.close()


@pytest.mark.parametrize("at", [0, 100, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 19_999])
def test_a_flipped_bit_is_seen_on_load(root: Path, tools: Any, at: int) -> None:
    block = tools.chain(1)[0]
    engine = FileEngine(root)
    put(engine, block, tools.payload(block))
    path = engine._path(block.key)
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    with pytest.raises(BadBlock):
        load(engine, block)
    engine.close()


def test_left_overs_of_a_dead_writer_are_removed(root: Path, tools: Any) -> None:
    engine = FileEngine(root)
    (root / "writing" / "0").write_bytes(b"half a block")
    assert engine.scan() == ([], 0)
    assert files(root) == []
    engine.close()


@pytest.mark.parametrize(("data", "why"), [(b"x" * 20_000, "checksum"), (b"x" * 19_999, "payload of 19999")])
def test_bytes_that_are_not_what_was_said_leave_nothing(root: Path, tools: Any, data: bytes, why: str) -> None:
    block = tools.chain(1)[0]
    engine = FileEngine(root)
    with pytest.raises(BadBlock, match=why):
        engine.put(block, iter([memoryview(data)]), 12345)
    assert files(root) == []
    engine.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_failing_disk_leaves_nothing(
    root: Path, tools: Any, call: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = tools.chain(1)[0]
    engine = FileEngine(root)

    def fail(*arguments: object, **named: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(OSError, match=os.strerror(number)):
            put(engine, block, tools.payload(block))
    assert files(root) == []
    put(engine, block, tools.payload(block))
    assert load(engine, block) == tools.payload(block)
    engine.close()


def test_folders_where_files_belong_do_not_keep_a_store_from_starting(root: Path, tools: Any) -> None:
    first, second = tools.chain(2)
    engine = FileEngine(root)
    put(engine, first, tools.payload(first))
    engine.close()
    for path in (engine._path(second.key), root / "writing" / "0"):
        (path / "more").mkdir(parents=True)
    engine = FileEngine(root)
    assert engine.scan() == ([first], 1)
    for _ in range(2):
        with pytest.raises((IsADirectoryError, FileExistsError)):
            put(engine, second, tools.payload(second))
    (engine._path(second.key) / "more").rmdir()
    engine._path(second.key).rmdir()
    put(engine, second, tools.payload(second))
    assert load(engine, second) == tools.payload(second)
    engine.close()


def test_one_store_a_folder(root: Path) -> None:
    engine = FileEngine(root)
    with pytest.raises(SettingError, match="in use by another store"):
        FileEngine(root)
    engine.close()
    FileEngine(root).close()


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingError, match=str(tmp_path / "file")):
        FileEngine(tmp_path / "file" / "store")
