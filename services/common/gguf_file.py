"""The header of a GGUF file: metadata, and where its tensors lie.

A reader of our own, because a cut file must be refused by naming what is cut, and because the `gguf` package makes
a numpy view of every token and merge: two seconds and 250,000 objects for a vocabulary of 49,152.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MOST_DIMENSIONS = 4


class GgufError(ValueError):
    """The file is no GGUF that this reader knows, or is cut short; the message names it."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """As the header has it. shape: outermost dimension first. type: GGML's number. offset: from data_begin."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    metadata: dict[str, Any]
    tensors: list[TensorEntry]
    data_begin: int
    size_bytes: int


class _Cursor:
    """Walks the header; a read past the end says so instead of returning less."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise GgufError(
                f"{self.path}: not a whole GGUF file: it ends at byte {len(self.data)}, in the middle of its header; "
                "cut short or damaged: fetch it again"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            if item in _SCALARS:
                size = struct.calcsize("<" + _SCALARS[item])
                return list(struct.unpack(f"<{count}{_SCALARS[item]}", self.take(size * count)))
            return [self.value(item) for _ in range(count)]
        raise GgufError(f"{self.path}: metadata of unknown type {kind} at byte {self.at}; the file is damaged")

    def preamble(self) -> tuple[int, int]:
        """Numbers of tensors and of metadata entries."""
        if self.take(4) != _MAGIC:
            raise GgufError(f"{self.path}: does not begin with GGUF's magic; it is something else")
        version = self.scalar("I")
        if version not in _VERSIONS:
            raise GgufError(f"{self.path}: GGUF version {version}; little-endian versions 2 and 3 can be read")
        return self.scalar("Q"), self.scalar("Q")

    def metadata(self, count: int) -> dict[str, Any]:
        return {self.string(): self.value(self.scalar("I")) for _ in range(count)}

    def tensor(self) -> TensorEntry:
        name, dimensions = self.string(), self.scalar("I")
        if dimensions > _MOST_DIMENSIONS:
            raise GgufError(f"{self.path}: tensor {name!r} has {dimensions} dimensions; the file is damaged")
        shape = tuple(self.scalar("Q") for _ in range(dimensions))[::-1]
        return TensorEntry(name, shape, self.scalar("I"), self.scalar("Q"))


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a GGUF file of version 2 or 3. Arrays are lists, strings str.

    Raises GgufError, or OSError if the file can't be opened.
    """
    return _read(path, with_tensors=False).metadata


def read_file(path: Path) -> GgufFile:
    """The whole header. Raises as `read_metadata`; whether tensors end before the file does is not looked at."""
    return _read(path, with_tensors=True)


def _read(path: Path, with_tensors: bool) -> GgufFile:
    if not path.stat().st_size:
        raise GgufError(f"{path}: the file is empty")
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(path, data)
        tensor_count, metadata_count = cursor.preamble()
        metadata = cursor.metadata(metadata_count)
        tensors = [cursor.tensor() for _ in range(tensor_count)] if with_tensors else []
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1:
            raise GgufError(f"{path}: general.alignment is {align!r}")
        return GgufFile(metadata, tensors, -(-cursor.at // align) * align, len(data))
