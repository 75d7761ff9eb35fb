"""Reads from 3FS through its user-space ring (USRBIO), where 3FS's Python library is installed.

Written to the library's published interface (`hf3fs_fuse.io`: make_iovec, make_ioring, register_fd; prepare, submit,
wait) and tested against a stand-in of it only: it has not run on a real 3FS. Writes go through the mount.
"""

import contextlib
import os
import threading
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from services.common.settings import SettingError
from services.kvstore.block import BadBlock
from services.kvstore.engines import Read, page
from services.kvstore.engines.files.reading import opened
from services.kvstore.engines.files.tree import Tree
from services.kvstore.engines.page import PAGE_BYTES, Page

MODULE = "hf3fs_fuse.io"
DEPTH = 32


class Usrbio:
    """One ring and one piece of memory known to 3FS for each thread that reads.

    `mount` is 3FS's mount point, `window_bytes` of memory hold what a batch reads. Raises SettingError when the library
    isn't there.
    """

    def __init__(self, mount: str, window_bytes: int = 64 << 20) -> None:
        try:
            self._library: Any = import_module(MODULE)
        except ImportError as error:
            raise SettingError(f"usrbio: {MODULE} of 3FS is not installed here: {error}") from error
        self._mount, self._window_bytes = mount, window_bytes
        self._threads = threading.local()
        self._windows: list[_Window] = []

    def load(self, tree: Tree, reads: Sequence[Read]) -> list[Exception | None]:
        """As StorageEngine.load."""
        if not hasattr(self._threads, "window"):
            self._threads.window = _Window(self._library, self._mount, self._window_bytes)
            self._windows.append(self._threads.window)
        window: _Window = self._threads.window
        return [self._outcome(window, tree.path(read.key), read) for read in reads]

    def close(self) -> None:
        for window in self._windows:
            window.close()
        self._windows.clear()

    def _outcome(self, window: "_Window", path: Path, read: Read) -> Exception | None:
        try:
            with opened(path) as file, window.registered(file):
                found = page.parse(window.read(file, 0, PAGE_BYTES))
                found.require(read.key, read.length)
                _load(window, file, found, read)
        except (BadBlock, OSError) as error:
            return error
        return None


class _Window:
    """Memory that 3FS reads into, in pieces with up to DEPTH reads under way."""

    def __init__(self, library: Any, mount: str, size: int) -> None:
        self._library = library
        self._memory = SharedMemory(size=size, create=True)
        self._iov: Any = library.make_iovec(self._memory, mount)
        self._ring: Any = library.make_ioring(mount, DEPTH, for_read=True, io_depth=0)
        self.size = size

    @contextlib.contextmanager
    def registered(self, file: int) -> Any:
        self._library.register_fd(file)
        try:
            yield
        finally:
            self._library.deregister_fd(file)

    def read(self, file: int, offset: int, length: int) -> memoryview:
        """The bytes, in the window: good until the next read. Raises BadBlock when the file is shorter."""
        part = -(-length // DEPTH)
        parts = [(at, min(part, length - at)) for at in range(0, length, part)]
        for at, size in parts:
            self._ring.prepare(self._iov[at : at + size], True, file, offset + at)
        done = self._ring.submit().wait(min_results=len(parts))
        for result in done:
            if result.result < 0:
                raise OSError(-result.result, os.strerror(-result.result))
        if sum(result.result for result in done) < length:
            raise BadBlock("cut short")
        assert self._memory.buf is not None
        return self._memory.buf[:length]

    def close(self) -> None:
        self._ring = self._iov = None
        self._memory.close()
        self._memory.unlink()


def _load(window: _Window, file: int, found: Page, read: Read) -> None:
    """Window after window: each is whole pieces, which are verified before any of it is handed on."""
    begin, end = found.around(read.offset, len(read.into))
    step = window.size // found.piece * found.piece
    for at in range(begin, end, step):
        data = window.read(file, PAGE_BYTES + at, min(step, end - at))
        found.verify(at, data)
        first, last = max(at, read.offset), min(at + len(data), read.offset + len(read.into))
        read.into[first - read.offset : last - read.offset] = data[first - at : last - at]
        data.release()
