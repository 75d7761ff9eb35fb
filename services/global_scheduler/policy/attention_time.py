"""How long a prefill's attention takes: a fit to what profiling the engine offline measured (D13)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np


class Sample(NamedTuple):
    cached: int
    bsz: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AttentionTime:
    """Seconds of all layers' attention for one request in a prefill step: it grows with each query's keys. The
    coefficients are at least 0, so more tokens never seem to take less time."""

    request_s: float
    token_s: float
    pair_s: float

    def __post_init__(self) -> None:
        for name in ("request_s", "token_s", "pair_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not a time")

    def seconds(self, cached: int, bsz: int) -> float:
        """`bsz` new tokens behind `cached` whose KV is there. 0 for no tokens."""
        if bsz == 0:
            return 0.0
        return self.request_s + self.token_s * bsz + self.pair_s * pairs(cached, bsz)


def pairs(cached: int, bsz: int) -> int:
    """Pairs of a query and a key that attention looks at: the first new token sees cached + 1 keys, the last
    cached + bsz."""
    return bsz * cached + bsz * (bsz + 1) // 2


def fit(samples: Sequence[Sample]) -> AttentionTime:
    """The coefficients, none below 0, with the least squared relative errors. Raises ValueError without samples, or
    for one that took no time."""
    if not samples:
        raise ValueError("no samples to fit attention times to")
    if wrong := [sample for sample in samples if not sample.seconds > 0 or sample.bsz < 1 or sample.cached < 0]:
        raise ValueError(f"not a measured prefill: {wrong[0]}")
    rows = np.array([(1, bsz, pairs(cached, bsz)) for cached, bsz, _ in samples], dtype=float)
    rows /= np.array([[sample.seconds] for sample in samples])
    scale = rows.max(axis=0)
    ones = np.ones(len(samples))
    best, best_error = np.zeros(3), float("inf")
    for size in (1, 2, 3):  # where a bound is met, that coefficient is 0: so the best of these is the best of all
        for columns in combinations(range(3), size):
            chosen = list(columns)
            found = np.linalg.lstsq(rows[:, chosen] / scale[chosen], ones, rcond=None)[0]
            error = float(np.square(rows[:, chosen] / scale[chosen] @ found - ones).sum())
            if (found >= 0).all() and error < best_error:
                best, best_error = np.zeros(3), error
                best[chosen] = found / scale[chosen]
    return AttentionTime(*(float(value) for value in best))
