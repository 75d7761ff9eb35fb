"""Blocks and memory for the store's benches, and a clock of both times."""

import mmap
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from services.common.keys import block_keys, root_key
from services.kvstore.block import Block
from services.kvstore.engines.local import LocalEngine


def chain(count: int, length: int, seed: int = 0) -> list[Block]:
    tokens = np.random.default_rng(seed).integers(0, 50_000, 64 * count).astype("<u4")
    parent, blocks = root_key("bench", ""), []
    for position, key in enumerate(block_keys(parent, tokens)):
        blocks.append(Block(key, parent, position, length, tokens[64 * position : 64 * position + 64].tobytes()))
        parent = key
    return blocks


@contextmanager
def memory(engine: LocalEngine, length: int, count: int) -> Iterator[list[memoryview]]:
    """`count` buffers of a block each, registered, full of bytes that don't compress."""
    with mmap.mmap(-1, length * count) as mapping:
        view = memoryview(mapping)
        view[:] = np.random.default_rng(1).bytes(len(view))
        engine.register(view)
        parts = [view[at * length : (at + 1) * length] for at in range(count)]
        try:
            yield parts
        finally:
            engine.unregister(view)
            for part in parts:
                part.release()
            view.release()


class Clock:
    """Seconds and CPU seconds of what runs inside."""

    def __enter__(self) -> "Clock":
        self._wall, self._cpu = time.perf_counter(), self._used()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self._wall, self._used() - self._cpu

    @staticmethod
    def _used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime
