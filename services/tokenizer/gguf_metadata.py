"""The metadata of a GGUF file, without its tensors.

The `gguf` package makes a numpy view of every token and merge on opening (two seconds and 250,000
objects for a 49,152-token vocabulary); the front end needs a few keys once, so it reads them itself.
"""

import mmap
import struct
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class GgufError(ValueError):
    """The file is no GGUF that this reader knows, or is cut short; the message names it."""


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalars(self, code: str, count: int = 1) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{code}")
        values = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += size * count
        return values

    def text(self) -> str:
        (length,) = self.scalars("Q")
        raw = self.data[self.at : self.at + length]
        if len(raw) != length:
            raise struct.error("string runs past the end")
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.scalars("I")[0], self.scalars("Q")[0]
            if inner in _SCALARS:
                return list(self.scalars(_SCALARS[inner], count))
            return [self.value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise struct.error(f"value type {kind}")
        return self.scalars(_SCALARS[kind])[0]


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a GGUF file of version 2 or 3. Arrays are lists, strings str.

    Raises GgufError, or OSError if the file can't be opened.
    """
    if not path.stat().st_size:
        raise GgufError(f"{path}: the file is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data)
        try:
            return _pairs(cursor)
        except (struct.error, OverflowError, MemoryError) as error:
            raise GgufError(f"{path}: not a whole GGUF file (byte {cursor.at}: {error})") from error


def _pairs(cursor: _Cursor) -> dict[str, Any]:
    if cursor.data[:4] != MAGIC:
        raise struct.error("no GGUF magic")
    cursor.at = 4
    version, _tensors, count = *cursor.scalars("I"), *cursor.scalars("Q"), *cursor.scalars("Q")
    if version not in (2, 3):
        raise struct.error(f"version {version}; known are 2 and 3")
    pairs = {}
    for _ in range(count):
        key = cursor.text()
        pairs[key] = cursor.value(cursor.scalars("I")[0])
    return pairs
