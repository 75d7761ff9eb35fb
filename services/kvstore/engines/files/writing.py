"""Blocks into files: written whole under a temporary name, synced, and only then given their name."""

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np

from services.kvstore.engines import Write, page
from services.kvstore.engines.files.tree import Tree, sync_folders, throw_away
from services.kvstore.engines.page import PAGE_BYTES

ALIGNMENT = 4096
"""Of memory, offsets and lengths of I/O past the page cache, on any disk."""


class Pending:
    """One write on its way; `error` ends it, and nothing of it stays."""

    def __init__(self, tree: Tree, write: Write) -> None:
        self.temporary, self.path = tree.temporary(), tree.path(write.block.key)
        self.write = write
        self.error: Exception | None = None
        self._file = -1
        self._published = False

    def fill(self) -> None:
        head = page.make(self.write.block, self.write.data, self.write.crc)
        self._file = os.open(self.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _allocate(self._file, PAGE_BYTES + len(self.write.data))
        _write_past_cache(self.temporary, head, self.write.data)

    def sync(self) -> None:
        os.fsync(self._file)

    def publish(self) -> None:
        self.temporary.rename(self.path)
        self._published = True

    def end(self) -> None:
        """Lets go of the file; removes it, if the write failed at any step."""
        if self._file >= 0:
            os.close(self._file)
        if self.error is not None:
            throw_away(self.path if self._published else self.temporary)


def put(tree: Tree, writes: Sequence[Write], syncs: Executor) -> list[Exception | None]:
    """As StorageEngine.put: each step for all blocks before the next step, and the syncs at once on threads of `syncs`,
    so that the file system makes one of many."""
    pending = [Pending(tree, write) for write in writes]
    try:
        for one in pending:
            _attempt(one, Pending.fill)
        list(syncs.map(lambda one: _attempt(one, Pending.sync), pending))
        for one in pending:
            _attempt(one, Pending.publish)
        _sync_names(pending)
    finally:
        for one in pending:
            one.end()
    return [one.error for one in pending]


def _attempt(one: Pending, step: Callable[[Pending], None]) -> None:
    """The step, unless one before it failed."""
    try:
        if one.error is None:
            step(one)
    except Exception as error:
        one.error = error


def _sync_names(pending: Sequence[Pending]) -> None:
    for folder in {one.path.parent for one in pending if one.error is None}:
        try:
            sync_folders([folder])
        except OSError as error:
            for one in pending:
                if one.path.parent == folder:
                    one.error = one.error or error


def _allocate(file: int, size: int) -> None:
    """A full disk says so now. A file system that can't do this may find out later."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def _write_past_cache(path: Path, head: bytes, data: memoryview) -> None:
    """Head and data from where they are, the last part page by page from a copy; cut to its length at the end."""
    whole = len(data) // ALIGNMENT * ALIGNMENT
    if np.frombuffer(data, np.uint8).ctypes.data % ALIGNMENT:
        whole = 0
    rest = memoryview(mmap.mmap(-1, PAGE_BYTES + _round_up(len(data) - whole)))  # memory on a page; goes with its views
    rest[:PAGE_BYTES] = head
    rest[PAGE_BYTES : PAGE_BYTES + len(data) - whole] = data[whole:]
    file = _open_direct(path)
    try:
        _write_all(file, [rest[:PAGE_BYTES], data[:whole], rest[PAGE_BYTES:]])
        os.ftruncate(file, PAGE_BYTES + len(data))
    finally:
        os.close(file)


def _open_direct(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # the file system has no way past its cache


def _write_all(file: int, parts: list[memoryview]) -> None:
    at = 0
    while parts:
        done = os.pwritev(file, parts, at)
        at += done
        while parts and done >= len(parts[0]):
            done -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][done:]


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
