"""Slices of blocks out of files, each verified before it counts."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from services.kvstore.block import BadBlock
from services.kvstore.engines import Read, page
from services.kvstore.engines.files.tree import Tree
from services.kvstore.engines.page import PAGE_BYTES, Page


def load(tree: Tree, reads: Sequence[Read]) -> list[Exception | None]:
    """As StorageEngine.load. Through the page cache: a block that was read before may come from memory."""
    return [_outcome(tree.path(read.key), read) for read in reads]


def head(path: Path) -> Page:
    """The page at the front of a block's file. Raises BadBlock, OSError."""
    with opened(path) as file:
        raw = os.pread(file, PAGE_BYTES, 0)
        found = page.parse(raw)
        if found.block.key.hex() != path.name or os.fstat(file).st_size != PAGE_BYTES + found.block.length:
            raise BadBlock("cut short, or under another block's name")
        return found


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A block's file. Raises BadBlock where it, or what is read of it inside, is gone for good."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BadBlock("its file is gone") from None
    try:
        yield file
    except OSError as error:
        if error.errno in (errno.EIO, errno.EISDIR):
            raise BadBlock(f"it can't be read: {error.strerror}") from error
        raise
    finally:
        os.close(file)


def _outcome(path: Path, read: Read) -> Exception | None:
    try:
        with opened(path) as file:
            _load(file, read)
    except (BadBlock, OSError) as error:
        return error
    return None


def _load(file: int, read: Read) -> None:
    raw = bytearray(PAGE_BYTES)
    if read.offset == 0 and len(read.into) == read.length:  # all of it: page and bytes at once
        got = _fill(file, [memoryview(raw), read.into], 0)
        found = page.parse(memoryview(raw)[:got])
        found.require(read.key, read.length)
        if got < PAGE_BYTES + read.length:
            raise BadBlock("cut short")
        found.verify(0, read.into)
        return
    found = page.parse(os.pread(file, PAGE_BYTES, 0))
    found.require(read.key, read.length)
    begin, end = found.around(read.offset, len(read.into))
    exact = (begin, end) == (read.offset, read.offset + len(read.into))
    pieces = read.into if exact else memoryview(bytearray(end - begin))
    got = _fill(file, [pieces], PAGE_BYTES + begin)
    if got < len(pieces):
        raise BadBlock("cut short")
    found.verify(begin, pieces)
    if not exact:
        read.into[:] = pieces[read.offset - begin : read.offset - begin + len(read.into)]


def _fill(file: int, parts: list[memoryview], at: int) -> int:
    """Bytes read; fewer than there is room for only at the end of the file."""
    parts, total = list(parts), 0
    while parts and (got := os.preadv(file, parts, at + total)):
        total += got
        while parts and got >= len(parts[0]):
            got -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][got:]
    return total
