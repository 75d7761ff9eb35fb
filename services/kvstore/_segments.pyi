"""Types of the native module `_segments` (native/segments_module.cpp)."""

from collections.abc import Sequence

from services.fabric.operations import Bytes

PAGE: int
IDENTITY_BYTES: int
HEAD_BYTES: int
LARGEST_BLOCK: int
CRC_INSTRUCTION: bool
# Outcomes of a block beside 0 and the numbers of errno.
DONE: int
NOT_THERE: int
WRONG_BYTES: int

def piece_bytes(length: int) -> int:
    """Bytes that one checksum covers in a block of `length`."""

def crc32c(data: Bytes, instruction: bool = ...) -> int: ...
def allocate(fd: int, offset: int, bytes: int) -> None:
    """Room on the disk, reading as zeros; a longer file where it reaches beyond the end. Raises OSError."""

def punch(fd: int, offset: int, bytes: int) -> None:
    """Gives room back; it then reads as zeros. Raises OSError."""

def guard(memory: Bytes) -> bool:
    """Where a peer takes pages of this shared memory away, or of the page before it, zeros take their place from
    now on; touching them would end the process otherwise. False: too much is guarded already."""

def unguard(memory: Bytes) -> None:
    """Before the memory is unmapped. Idempotent."""

class PlaceTable:
    """Places, numbers of 64 bits above 0, by keys of 16 bytes. Not for several threads."""

    def __len__(self) -> int: ...
    @property
    def memory(self) -> int:
        """Bytes that it takes."""

    def get(self, key: bytes) -> int:
        """0: not there."""

    def set(self, key: bytes, place: int) -> int:
        """Returns the place before it, or 0."""

    def pop(self, key: bytes) -> int:
        """Removes it and returns it, or 0."""

class Channels:
    """`count` calls at once, each with at most `depth` transfers under way; more calls wait for their turn, 300 s at
    most, and then answer ETIMEDOUT.

    `kind` "auto" takes io_uring, or threads where it is not to be had: `why` then says so.
    """

    def __init__(self, count: int, depth: int, kind: str = "auto") -> None: ...
    @property
    def kind(self) -> str: ...
    @property
    def why(self) -> str: ...
    def add_file(self, fd: int) -> int:
        """The file's slot for the requests below; -1, which they take too, when it could not be registered."""

    def drop_file(self, slot: int) -> None: ...
    def add_memory(self, memory: Bytes) -> bool:
        """Pins memory for transfers until `drop_memory`; false when the kernel doesn't let us."""

    def drop_memory(self, memory: Bytes) -> bool: ...
    def read(self, requests: list[tuple[int, int, int, bytes, int, memoryview]]) -> list[int]:
        """(fd, slot, offset of the block's page, identity, first byte, memory to fill) each; an outcome each."""

    def write(self, requests: list[tuple[int, int, int, bytes, memoryview, int]]) -> list[int]:
        """(fd, slot, offset of the block's page, head, data, crc32c of data) each; an outcome each. Not yet durable."""

    def sync(self, files: Sequence[tuple[int, int]]) -> list[int]:
        """(fd, slot) each; 0 or an errno each."""
