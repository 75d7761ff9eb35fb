"""Where blocks lie. A storage engine keeps headers and payloads; what may be kept is the index's business."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.kvstore.block import Block, Stored


@dataclass(frozen=True, slots=True)
class Write:
    """A block on its way in: `data` are its bytes, contiguous, and `crc` the crc32c that its writer says they have.

    Data that begins on a page is written from where it is.
    """

    block: Block
    data: memoryview
    crc: int


@dataclass(frozen=True, slots=True)
class Read:
    """A slice of the block `key`, from `offset` for as many bytes as `into` has: all of it, or a Layer Block (D5).

    `length` is what the block must have in all; another one on the disk is a BadBlock. Memory that begins on a page,
    for a slice that does too, is read into directly: a peer's mapped region may be given.
    """

    key: bytes
    length: int
    offset: int
    into: memoryview


@dataclass(frozen=True, slots=True)
class Scan:
    """What a store holds when it is opened: whole blocks, least recently written first; how many were thrown away."""

    blocks: list[Stored]
    broken: int


class StorageEngine(Protocol):
    """Durable blocks by key, many a call. Every call blocks and lets other Python threads run.

    Losing a block is allowed; giving wrong bytes, or bytes of a put that did not return, is not. Puts and loads
    may come from any number of threads at once, but no two calls that change the same key.
    """

    @property
    def shared(self) -> bool:
        """Whether others change what is here, so that a block may come and go without this store: see `find`."""
        ...

    @property
    def largest_block(self) -> int:
        """The most payload bytes that a block may have."""
        ...

    @property
    def index_bytes(self) -> int:
        """Memory for where the blocks lie."""
        ...

    def footprint(self, length: int) -> int:
        """Bytes on the disk that a block of `length` payload bytes takes."""
        ...

    def scan(self) -> Scan:
        """Called once, before anything else; afterwards nothing but these blocks is on the disk, and what can't be read
        now but may be at the next start."""
        ...

    def find(self, keys: Sequence[bytes]) -> list[Stored]:
        """The longest run of `keys`, from the first, that others have stored. Asked only where `shared`."""
        ...

    def put(self, writes: Sequence[Write]) -> list[Exception | None]:
        """Makes blocks durable under one sync. None: it survives a crash from now on.

        BadBlock when length or crc32c are not what was said, OSError when the disk fails: nothing of that block stays.
        """
        ...

    def load(self, reads: Sequence[Read]) -> list[Exception | None]:
        """Fills `into` of each, and verifies what was read. None: the bytes are right.

        BadBlock: the block is lost, unless somebody else writes to `into` too. OSError: it may be read later. What lies
        in `into` is then undefined.
        """
        ...

    def remove(self, keys: Sequence[bytes]) -> list[OSError | None]:
        """Frees blocks in the order given, children first. Idempotent. OSError: its room is lost until a restart."""
        ...

    def register(self, memory: memoryview) -> None:
        """Hint: batches will use this memory, for long. Never fails; at worst nothing is gained."""
        ...

    def unregister(self, memory: memoryview) -> None:
        """Before the memory goes. Idempotent."""
        ...

    def close(self) -> None: ...
