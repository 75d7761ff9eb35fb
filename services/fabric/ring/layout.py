"""ring.hpp as numpy sees it. Every name, offset and value comes from the native module."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric.errors import FabricError

HEADER: np.dtype[np.void] = np.dtype(_ring.RING_HEADER)
LEASE: np.dtype[np.void] = np.dtype(_ring.FRONT_END_LEASE)
RECORD: np.dtype[np.void] = np.dtype(_ring.REQUEST_RECORD)
REPORT: np.dtype[np.void] = np.dtype(_ring.SLOT_REPORT)


MOST_CONTEXT = 1 << 24
"""Tokens; a ring that says more is none."""


class NotARing(FabricError):
    """The region holds no ring that this program can read."""


@dataclass(frozen=True, slots=True)
class RingGeometry:
    """How large a ring is: slots, and 32-bit words of its two arenas."""

    slots: int
    prompt_words: int
    token_words: int

    @property
    def size_bytes(self) -> int:
        """The length of the region that the ring needs."""
        return self.fields()["size_bytes"]

    def fields(self) -> dict[str, int]:
        """The header fields that the size decides, magic and version with them."""
        return _ring.lay_out(self.slots, self.prompt_words, self.token_words)


@dataclass(frozen=True, slots=True)
class Share:
    """What one front end holds of a ring while its lease lasts. Arena ranges are in words."""

    front_end: int
    slot_begin: int
    slot_count: int
    prompt_begin: int
    prompt_count: int
    token_begin: int
    token_count: int


def kv_reads(first: int, end: int) -> int:
    """A record's `kv_reads`: of the cached blocks, those that its engine reads from the store; 0 for none."""
    return first | end << 32 if end > first else 0


def blocks_read(kv_reads: int) -> range:
    """The other way round."""
    return range(kv_reads & 0xFFFFFFFF, kv_reads >> 32)


class Slots(NamedTuple):
    """Slot words, taken apart: one element a word in each array."""

    states: NDArray[np.uint8]
    finishes: NDArray[np.uint8]
    generations: NDArray[np.uint32]
    tokens: NDArray[np.uint32]


def unpack(words: NDArray[np.uint64]) -> Slots:
    n = len(words)
    slots = Slots(np.empty(n, np.uint8), np.empty(n, np.uint8), np.empty(n, np.uint32), np.empty(n, np.uint32))
    _ring.unpack_words(words, *slots)
    return slots


def header_field_offset(name: str) -> int:
    """Bytes from the ring's start to a field of its header."""
    return int(_ring.RING_HEADER["offsets"][_ring.RING_HEADER["names"].index(name)])


def check_header(header: np.void, length: int) -> None:
    """Raises NotARing unless `header` describes a ring that this program reads, within `length` bytes."""
    if header["magic"] != _ring.MAGIC:
        raise NotARing("the region holds no ring (its engine may still be starting)")
    if header["version"] != _ring.VERSION:
        raise NotARing(f"the ring has version {header['version']}, this program reads {_ring.VERSION}")
    geometry = RingGeometry(int(header["slot_count"]), int(header["prompt_words"]), int(header["token_words"]))
    for name, value in geometry.fields().items():
        if header[name] != value:
            raise NotARing(f"the ring's {name} is {header[name]}, its geometry asks for {value}")
    if not 0 < header["max_context"] <= MOST_CONTEXT:
        raise NotARing(f"the ring's max_context is {header['max_context']}")
    if geometry.size_bytes > length:
        raise NotARing(f"the ring has {geometry.size_bytes} bytes, its region only {length}")


def check_share(header: np.void, share: Share) -> None:
    """Raises NotARing unless `share` lies within the ring: it came from the engine, apart from the ring."""
    for what, begin, count, all_of_it in (
        ("slots", share.slot_begin, share.slot_count, header["slot_count"]),
        ("prompt words", share.prompt_begin, share.prompt_count, header["prompt_words"]),
        ("token words", share.token_begin, share.token_count, header["token_words"]),
    ):
        if not count or begin + count > int(all_of_it):
            raise NotARing(f"a share of {what} [{begin}, +{count}) of a ring with {all_of_it}")
    if share.front_end >= _ring.FRONT_ENDS:
        raise NotARing(f"a share of front-end place {share.front_end} of {_ring.FRONT_ENDS}")
