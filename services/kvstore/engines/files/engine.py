"""The engine `files`: put, load and remove as operations on one folder.

Several stores may share the folder, also from several machines. Each keeps its own index, and evicts what it knows. A
block that another store wrote is found by `find`, when a lookup misses it; one that another store evicted is a miss at
the first read, and is then forgotten. What was evicted under a child is thrown away by whoever scans next.
"""

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.kvstore.block import BadBlock, Stored
from services.kvstore.engines import Read, Scan, Write
from services.kvstore.engines.files import reading, writing
from services.kvstore.engines.files.tree import Tree, throw_away
from services.kvstore.engines.files.usrbio import Usrbio
from services.kvstore.engines.page import LARGEST_BLOCK, PAGE_BYTES

log = logging.getLogger(__name__)

SYNCS = 16
"""Files synced at once: a journal takes them together."""


class FileEngine:
    """Raises SettingError when the folder can't be used, or another store holds it and it is not to be shared.

    `usrbio`, on a 3FS mount, reads past the kernel.
    """

    largest_block = LARGEST_BLOCK
    index_bytes = 0  # a block's name says where it lies

    def __init__(self, root: Path, shared: bool = False, usrbio: Usrbio | None = None) -> None:
        self.shared = shared
        self._tree = Tree(root, shared)
        self._usrbio = usrbio
        self._syncs = ThreadPoolExecutor(SYNCS, "kvstore-sync")

    def footprint(self, length: int) -> int:
        return PAGE_BYTES + length

    def scan(self) -> Scan:
        self._tree.clean()
        found: list[tuple[int, Stored]] = []
        broken = 0
        for path in self._tree.files():
            try:
                block = reading.head(path).block.stored
                found.append((path.stat().st_mtime_ns, block))
            except BadBlock:
                throw_away(path)
                broken += 1
            except OSError as error:  # for now, maybe: another store has just evicted it, say, or files are scarce
                log.warning("a block is left out", extra={"path": str(path), "reason": str(error)})
        found.sort()
        return Scan([block for _, block in found], broken)

    def find(self, keys: Sequence[bytes]) -> list[Stored]:
        run: list[Stored] = []
        for key in keys:
            try:
                run.append(reading.head(self._tree.path(key)).block.stored)
            except (BadBlock, OSError):
                break
        return run

    def put(self, writes: Sequence[Write]) -> list[Exception | None]:
        return writing.put(self._tree, writes, self._syncs)

    def load(self, reads: Sequence[Read]) -> list[Exception | None]:
        if self._usrbio is not None:
            return self._usrbio.load(self._tree, reads)
        return reading.load(self._tree, reads)

    def remove(self, keys: Sequence[bytes]) -> list[OSError | None]:
        outcomes: list[OSError | None] = []
        for key in keys:
            try:
                os.unlink(self._tree.path(key))
            except FileNotFoundError:
                outcomes.append(None)
            except OSError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def register(self, memory: memoryview) -> None:
        """The kernel copies into any memory alike."""

    def unregister(self, memory: memoryview) -> None:
        """See `register`."""

    def close(self) -> None:
        if self._usrbio is not None:
            self._usrbio.close()
        self._syncs.shutdown()
        self._tree.close()
