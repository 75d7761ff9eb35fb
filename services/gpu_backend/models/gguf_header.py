"""Reads a GGUF file's header: metadata, and where each tensor lies.

A header of our own, because a cut file must be refused by naming what is cut, and because a vocabulary
of 128,000 strings should take milliseconds. Dequantizing is the `gguf` package's.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from services.gpu_backend.models.config import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: logical shape in row-major order (outermost first), and its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    begin: int
    size_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


class _Cursor:
    """Walks the header; a read past the end says so instead of returning less."""

    def __init__(self, file: Path, data: mmap.mmap) -> None:
        self.file, self.data, self.at = file, data, 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise ModelError(
                f"{self.file}: the GGUF header ends at byte {len(self.data)}, in the middle of an entry; "
                "the file is cut short or damaged: fetch it again"
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
        raise ModelError(f"{self.file}: metadata of unknown type {kind} at byte {self.at}; file is damaged")


def read_header(file: Path) -> GgufHeader:
    """Raises ModelError if the file isn't GGUF, is cut short, or names tensors beyond its end."""
    if file.stat().st_size < 24:
        raise ModelError(f"{file}: {file.stat().st_size} bytes are no GGUF file")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(file, data)
        if cursor.take(4) != _MAGIC:
            raise ModelError(f"{file}: does not begin with GGUF's magic; it is something else")
        version = cursor.scalar("I")
        if version not in _VERSIONS:
            raise ModelError(f"{file}: GGUF version {version}; little-endian versions 2 and 3 can be read")
        tensor_count, metadata_count = cursor.scalar("Q"), cursor.scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(metadata_count):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.scalar("I"))
        entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1:
            raise ModelError(f"{file}: general.alignment is {align!r}")
        begin = (cursor.at + align - 1) // align * align
        tensors = [_locate(file, begin, len(data), *entry) for entry in entries]
    return GgufHeader(metadata, {tensor.name: tensor for tensor in tensors})


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = cursor.string(), cursor.scalar("I")
    if dimensions > 4:
        raise ModelError(f"{cursor.file}: tensor {name!r} has {dimensions} dimensions; file is damaged")
    shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
    return name, shape, cursor.scalar("I"), cursor.scalar("Q")


def _locate(
    file: Path, data_begin: int, file_bytes: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> GgufTensor:
    try:
        quantization = GGMLQuantizationType(kind)
    except ValueError as error:
        raise ModelError(f"{file}: tensor {name!r} is of unknown quantization type {kind}") from error
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    elements = 1
    for extent in shape:
        elements *= extent
    size, begin = elements // block * block_bytes, data_begin + offset
    if begin + size > file_bytes:
        raise ModelError(
            f"{file}: tensor {name!r} should end at byte {begin + size} but the file has {file_bytes}; "
            "it is cut short: fetch it again"
        )
    return GgufTensor(name, shape, quantization, begin, size)
