"""BPE as it is defined: merge the pair of the lowest rank, of equal ones the leftmost, until none is left."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

Merges = Mapping[tuple[str, str], int]


def ranks(merges: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Of two merges of the same pair the later one counts, as for `tokenizers`."""
    return {pair: rank for rank, pair in enumerate(merges)}


def merged(symbols: Iterable[str], merges: Merges) -> list[str]:
    row = list(symbols)
    while True:
        found = [(merges[pair], i) for i, pair in enumerate(pairwise(row)) if pair in merges]
        if not found:
            return row
        _, at = min(found)
        row[at : at + 2] = [row[at] + row[at + 1]]
