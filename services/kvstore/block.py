"""What a Full Block says about itself (D5)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from services.common.keys import BLOCK_TOKENS, KEY_BYTES, next_key

_TOKEN_BYTES = 4 * BLOCK_TOKENS


class BadBlock(Exception):
    """A block on disk is not what it should be; the message says how. It is lost: a miss."""


class Stored(NamedTuple):
    """What is known of a block once it is stored; its tokens are beside its bytes."""

    key: bytes
    parent: bytes
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class Block:
    """One Full Block without its `length` bytes. `tokens` are the 64 token ids as little-endian u32;
    `position` is the number of blocks before it in its chain."""

    key: bytes
    parent: bytes
    position: int
    length: int
    tokens: bytes

    @property
    def stored(self) -> Stored:
        return Stored(self.key, self.parent, self.position, self.length)

    def fault(self) -> str:
        """Why this can't be a block; empty when it can."""
        if len(self.key) != KEY_BYTES or len(self.parent) != KEY_BYTES:
            return f"keys have {KEY_BYTES} bytes"
        if len(self.tokens) != _TOKEN_BYTES:
            return f"a block has {BLOCK_TOKENS} tokens, got {len(self.tokens) // 4}"
        if self.length == 0:
            return "a block of 0 bytes"
        if next_key(self.parent, np.frombuffer(self.tokens, "<u4")) != self.key:
            return "the key is not that of parent and tokens"
        return ""
