"""Where each tensor of a GGUF file lies, by GGML's quantization types. Dequantizing is the `gguf` package's."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from services.common.gguf_file import GgufError, GgufFile, TensorEntry, read_file
from services.gpu_backend.models.config import ModelError


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


def read_header(file: Path) -> GgufHeader:
    """Raises ModelError if the file isn't GGUF, is cut short, or names tensors beyond its end."""
    try:
        read = read_file(file)
    except GgufError as error:
        raise ModelError(str(error)) from error
    return GgufHeader(read.metadata, {entry.name: _locate(file, read, entry) for entry in read.tensors})


def _locate(file: Path, read: GgufFile, entry: TensorEntry) -> GgufTensor:
    try:
        quantization = GGMLQuantizationType(entry.type)
    except ValueError as error:
        raise ModelError(f"{file}: tensor {entry.name!r} is of unknown quantization type {entry.type}") from error
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    size, begin = math.prod(entry.shape) // block * block_bytes, read.data_begin + entry.offset
    if begin + size > read.size_bytes:
        raise ModelError(
            f"{file}: tensor {entry.name!r} should end at byte {begin + size} but the file has {read.size_bytes}; "
            "it is cut short: fetch it again"
        )
    return GgufTensor(entry.name, entry.shape, quantization, begin, size)
