"""Where blocks lie. A storage engine keeps headers and payloads; what may be kept is the index's business."""

from collections.abc import Callable, Iterable
from typing import Protocol

from services.kvstore.block import Block

PIECE_BYTES = 256 << 10
"""Payloads travel in pieces of at most so much: they stay in the core's cache from read to checksum to write."""

Sink = Callable[[int, memoryview], None]
"""Takes a piece of a block's payload at an offset within the block."""


class StorageEngine(Protocol):
    """Durable blocks by key. `put` and `remove` are called by one thread, `load` by any.

    Losing a block is allowed; giving wrong bytes, or bytes of a put that did not return, is not.
    """

    def scan(self) -> tuple[list[Block], int]:
        """All whole blocks, least recently used first, and how many broken ones were thrown away.

        Called once, before anything else; afterwards nothing but those blocks is on the disk.
        """
        ...

    def put(self, block: Block, payload: Iterable[memoryview], crc: int) -> None:
        """Makes a block durable: after the return it survives a crash, before it there is nothing.

        Raises BadBlock when the payload's length or crc32c is not what was said, OSError when the disk fails;
        in both cases nothing stays.
        """
        ...

    def load(self, block: Block, sink: Sink) -> None:
        """Hands the payload to `sink` in pieces, in order, checking header and checksum on the way.

        Raises BadBlock when the block is lost, OSError when it may be read later; what the sink got is then
        worth nothing. What the sink raises comes through.
        """
        ...

    def remove(self, key: bytes) -> None:
        """Idempotent. Raises OSError when the disk fails."""
        ...

    def close(self) -> None: ...
