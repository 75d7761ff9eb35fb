"""Reads by 3FS's user-space ring, against a stand-in of its library: it has never met a real 3FS here.

The stand-in keeps to what the library's published source says: memory is made known by make_iovec, files by
register_fd; prepare puts a read into the ring, submit hands the ring over, wait gives results, negative for errors.
"""

import os
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from services.common.settings import SettingError
from services.kvstore.block import BadBlock
from services.kvstore.engines.files.engine import FileEngine
from services.kvstore.engines.files.usrbio import DEPTH, MODULE, Usrbio
from tests.kvstore.engines.contract import EngineContract, Subject, load, write

WINDOW = 256 << 10


class Ring:
    def __init__(self, library: "Library", entries: int) -> None:
        self.library, self.entries = library, entries
        self.prepared: list[tuple[memoryview, int, int]] = []
        self.done: list[Any] = []

    def prepare(self, part: memoryview, read: bool, file: int, offset: int) -> None:
        assert read
        assert file in self.library.files, "a file that 3FS was not told of"
        assert len(self.prepared) < self.entries, "the ring is full"
        self.prepared.append((part, file, offset))

    def submit(self) -> "Ring":
        for part, file, offset in self.prepared:
            result = -self.library.fails if self.library.fails else os.preadv(file, [part], offset)
            self.done.append(SimpleNamespace(result=result))
        self.prepared.clear()
        self.library.reads += len(self.done)
        return self

    def wait(self, min_results: int = 1) -> list[Any]:
        assert len(self.done) >= min_results, "this would wait for ever"
        done, self.done = self.done, []
        return done


class Library(ModuleType):
    def __init__(self) -> None:
        super().__init__(MODULE)
        self.files: set[int] = set()
        self.fails = self.reads = 0

    def make_iovec(self, memory: SharedMemory, mount: str, block_size: int = 0, numa: int = -1) -> memoryview:
        assert mount == "/3fs"
        return memory.buf

    def make_ioring(self, mount: str, entries: int, for_read: bool = True, io_depth: int = 0) -> Ring:
        assert for_read
        return Ring(self, entries)

    def register_fd(self, file: int) -> None:
        self.files.add(file)

    def deregister_fd(self, file: int) -> None:
        self.files.remove(file)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setitem(sys.modules, "hf3fs_fuse", ModuleType("hf3fs_fuse"))
    monkeypatch.setitem(sys.modules, MODULE, library)
    return library


@pytest.fixture
def engine(library: Library, tmp_path: Path) -> Iterator[FileEngine]:
    engine = FileEngine(tmp_path / "store", usrbio=Usrbio("/3fs", WINDOW))
    engine.scan()
    yield engine
    engine.close()
    assert library.files == set(), "files stay registered"


class TestContract(EngineContract):
    @pytest.fixture
    def subject(self, engine: FileEngine, tmp_path: Path) -> Iterator[Subject]:
        again: list[FileEngine] = []

        def reopen() -> FileEngine:
            engine.close()
            again.append(FileEngine(tmp_path / "store", usrbio=Usrbio("/3fs", WINDOW)))
            return again[0]

        yield Subject(engine, reopen)
        for each in again:
            each.close()


def test_blocks_larger_than_the_window_are_read_piece_by_piece(
    engine: FileEngine, library: Library, tools: Any
) -> None:
    (block,) = tools.chain(1, length=1_000_001)
    assert engine.put([write(block, tools.payload(block))]) == [None]
    assert load(engine, block) == tools.payload(block)
    assert load(engine, block, 400_000, 300_000) == tools.payload(block)[400_000:700_000]
    assert library.reads > DEPTH, "it did not go through the ring"


def test_errors_of_the_ring(engine: FileEngine, library: Library, tools: Any, tmp_path: Path) -> None:
    (block,) = tools.chain(1)
    assert engine.put([write(block, tools.payload(block))]) == [None]
    library.fails = 11
    with pytest.raises(OSError, match="temporarily"):
        load(engine, block)
    library.fails = 5
    with pytest.raises(BadBlock, match="can't be read"):
        load(engine, block)
    library.fails = 0
    os.truncate(tmp_path / "store" / "blocks" / block.key.hex()[0] / block.key.hex(), 9000)
    with pytest.raises(BadBlock, match="cut short"):
        load(engine, block)


def test_without_the_library_the_setting_says_so() -> None:
    with pytest.raises(SettingError, match="usrbio: hf3fs_fuse"):
        Usrbio("/3fs")
