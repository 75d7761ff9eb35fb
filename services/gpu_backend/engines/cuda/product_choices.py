"""Which cuBLAS kernel was found to be the quickest for a product, kept between runs.

Trying all of them takes half a minute for a large model. And a kernel rounds in its own order: with the same ones, an
engine that was started again answers the same.
"""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.gpu_backend.engines.cuda.cublas_lt import Algorithm

log = logging.getLogger(__name__)

PLAIN = "plain"
"""cuBLAS's own choice."""


@dataclass(frozen=True, slots=True)
class Shape:
    """out[rows, n] (+)= x[rows, k] weight[n, k]^T."""

    rows: int
    n: int
    k: int
    added: bool

    @property
    def name(self) -> str:
        return f"{self.rows} x {self.n} x {self.k}{' added' if self.added else ''}"


class ProductChoices:
    """In one file of `folder`, for all that has the same `conditions`: GPU, library, multiprocessors to spare."""

    def __init__(self, folder: Path, conditions: Sequence[object]) -> None:
        digest = hashlib.sha256(repr(tuple(conditions)).encode()).hexdigest()[:24]
        self._place = folder / f"products-{digest}.json"
        self._kept: dict[str, Algorithm | None] = self._read()

    def find(self, shape: Shape) -> Algorithm | str | None:
        """The algorithm, or PLAIN; None if this shape has not been tried."""
        if shape.name not in self._kept:
            return None
        return self._kept[shape.name] or PLAIN

    def keep(self, shape: Shape, algorithm: Algorithm | None) -> None:
        """None: PLAIN. Processes that try at the same time may each keep theirs; the last one stays."""
        self._kept[shape.name] = algorithm
        self._place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._place.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps({name: each and asdict(each) for name, each in self._kept.items()}, indent=1))
        unfinished.replace(self._place)

    def _read(self) -> dict[str, Algorithm | None]:
        try:
            found = json.loads(self._place.read_text())
            return {name: each and _algorithm(each) for name, each in found.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            told = {"file": str(self._place), "error": str(error)}
            log.warning("choices of kernels can't be read; all are tried again", extra=told)
            return {}


def _algorithm(kept: dict[str, Any]) -> Algorithm:
    words = tuple(int(word) for word in kept["words"])
    return Algorithm(words, int(kept["workspace"]), int(kept["processors"]))
