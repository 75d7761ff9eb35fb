"""A running hash of tokens that numpy computes at once, standing in for KV that depends on all before it.

h(p) = h(p-1) * M + mix(token(p)) modulo 2^32, with h(-1) = 0. M is odd, hence invertible, so the hashes of
a whole chunk are a cumulative sum: h(p) = M^(p+1) * (h(-1) + sum of mix(token(j)) * M^-(j+1), j <= p).
"""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIER = 0x9E3779B1
_INVERSE = pow(_MULTIPLIER, -1, 1 << 32)

Uint32s = NDArray[np.uint32]


def _mix(tokens: Uint32s) -> Uint32s:
    """Never 0 for the tokens that exist, so that memory of zeros is no valid chain."""
    return (tokens + np.uint32(1)) * np.uint32(0x85EBCA6B)


class ChainPowers:
    """Powers of M and of its inverse, for chains of up to `length` tokens."""

    def __init__(self, length: int) -> None:
        self.powers = np.cumprod(np.full(length, _MULTIPLIER, np.uint32), dtype=np.uint32)
        self.inverses = np.cumprod(np.full(length, _INVERSE, np.uint32), dtype=np.uint32)

    def next(self, previous: Uint32s, tokens: Uint32s) -> Uint32s:
        """One step of many chains."""
        return previous.astype(np.uint32) * np.uint32(_MULTIPLIER) + _mix(tokens)


def chain(previous: int, tokens: Uint32s, powers: ChainPowers) -> Uint32s:
    """u32[len(tokens)]: the hash after each token, going on from `previous`."""
    count = len(tokens)
    sums = np.cumsum(_mix(tokens) * powers.inverses[:count], dtype=np.uint32)
    return powers.powers[:count] * (sums + np.uint32(previous))
