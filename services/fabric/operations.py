"""One-sided operations, as values: what `RemoteRegion.post` takes."""

import enum
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Bytes = bytes | bytearray | memoryview | NDArray[Any]
"""Contiguous memory; what is written to must be writable."""


class TrafficClass(enum.Enum):
    """Which share of the link an operation travels in (D8).

    MODEL is everything that a token waits for: collectives and the ring. KV is bulk cache movement.
    A transport without a shared link (`shm`) has nothing to arbitrate and treats both alike.
    """

    MODEL = "model"
    KV = "kv"


@dataclass(frozen=True, slots=True)
class Read:
    """Copies `into`'s length of bytes from `offset`. Every aligned 8-byte word of up to 64 KiB arrives untorn; of more,
    those that are not being written."""

    offset: int
    into: Bytes


@dataclass(frozen=True, slots=True)
class Write:
    """Copies `data` to `offset`. 4 or 8 aligned bytes become visible at once, after all that was written before."""

    offset: int
    data: Bytes


@dataclass(frozen=True, slots=True)
class CompareSwap:
    """Sets the 8-byte word at `offset` to `desired` if it is `expected`. Answers the word found."""

    offset: int
    expected: int
    desired: int


@dataclass(frozen=True, slots=True)
class FetchAdd:
    """Adds to the 8-byte word at `offset`, modulo 2**64: a negative number subtracts. Answers the word found."""

    offset: int
    add: int


Atomic = CompareSwap | FetchAdd
Operation = Read | Write | Atomic
