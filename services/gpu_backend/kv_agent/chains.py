"""Block keys of the requests that the agent knows. Pure.

Keys are chained, so a block can be stored only while every block before it is: a chain that lost one
is broken, and nothing more of it is stored.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.common.keys import next_key
from services.kvstore.client import Block


@dataclass(slots=True, eq=False)
class Chain:
    root: bytes
    keys: list[bytes] = field(default_factory=list)
    broken: bool = False


class Chains:
    """By slot and generation: a slot may be used again before the end of its earlier request is told."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._chains: dict[tuple[int, int], Chain] = {}

    def __len__(self) -> int:
        return len(self._chains)

    def begin(self, slot: int, generation: int, root: bytes, keys: list[bytes]) -> Chain:
        """A request whose first blocks have these keys, whether they will be loaded or computed."""
        chain = self._chains[slot, generation] = Chain(root, list(keys))
        return chain

    def follow(
        self, slot: int, generation: int, root: bytes, position: int, tokens: NDArray[np.uint32]
    ) -> tuple[Chain, Block | None]:
        """The request's block `position`, which has these tokens; None when it can't be stored: its chain is
        broken, or a block before it was never seen (then the chain is broken now)."""
        chain = self._chains.setdefault((slot, generation), Chain(root))
        if chain.broken or position > len(chain.keys):
            chain.broken = True
            return chain, None
        parent = chain.keys[position - 1] if position else root
        key = next_key(parent, tokens)
        del chain.keys[position:]
        chain.keys.append(key)
        return chain, Block(key, parent, position, self._block_bytes, tokens.astype("<u4").tobytes())

    def end(self, slot: int, generation: int) -> None:
        """Idempotent."""
        self._chains.pop((slot, generation), None)
