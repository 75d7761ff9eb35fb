"""Where a model's tensors come from, whatever the file format."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import torch

from services.gpu_backend.models.config import ModelConfig, ModelError

Progress = Callable[[str, int, int], None]
"""(what is being done, bytes done, bytes in all); called often and from the loading thread."""


def no_progress(what: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


class WeightSource(Protocol):
    """Tensors by their HuggingFace names, in HuggingFace's row order. Open while a model is built."""

    @property
    def config(self) -> ModelConfig: ...

    def has(self, name: str) -> bool:
        """Whether the model has it. If its files lack it all the same, `read` says so."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor, on the CPU, in float32, bfloat16 or float16. Nothing else refers to its memory.

        Raises ModelError naming file and tensor if it is missing, of another shape or of a dtype that
        can't be read.
        """
        ...


class FileSource(WeightSource, Protocol):
    """A WeightSource over files, which may hold more than a model reads."""

    def unread(self) -> set[str]:
        """Tensors that `read` was not asked for, by the files' own names."""
        ...


def check_shape(file: Path, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if found != expected:
        raise ModelError(f"{file}: tensor {name!r} has shape {list(found)}; the model needs {list(expected)}")


def content_identity(files: Iterable[Path], config: ModelConfig, progress: Progress) -> str:
    """128 bits over every byte of the weight files and over the config that was read from them.

    The whole content counts, since two fine-tunes of one model differ in nothing else. Raises ModelError for a file
    that can't be read.
    """
    ordered = sorted(files)
    digest = hashlib.sha256(repr(config).encode())
    try:
        total, done = sum(file.stat().st_size for file in ordered), 0
        for file in ordered:
            with file.open("rb") as stream:
                while piece := stream.read(1 << 24):
                    digest.update(piece)
                    done += len(piece)
                    progress("hashing", done, total)
    except OSError as error:
        raise ModelError(f"{error.filename or ordered[0].parent}: can't be read: {error.strerror}") from error
    return digest.hexdigest()[:32]
