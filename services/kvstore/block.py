"""What a Full Block says about itself, and the header that carries it on disk (D5).

    magic 8 | version u32 | position u32 | key 16 | parent 16 | length u32 | payload crc u32
    | tokens 64 x u32 | header crc u32 (over all before it)

All little endian. The key is checked against parent and tokens, so a header can't lie about its content.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from services.common.keys import BLOCK_TOKENS, KEY_BYTES, next_key

_MAGIC = b"HLSBLOCK"
_VERSION = 1
_FIXED = struct.Struct("<8sII16s16sII")
_TOKEN_BYTES = 4 * BLOCK_TOKENS
HEADER_BYTES = _FIXED.size + _TOKEN_BYTES + 4


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

    @property
    def file_bytes(self) -> int:
        """What the block takes from the store's capacity."""
        return HEADER_BYTES + self.length

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


def encode_header(block: Block, payload_crc: int) -> bytes:
    head = _FIXED.pack(_MAGIC, _VERSION, block.position, block.key, block.parent, block.length, payload_crc)
    head += block.tokens
    return head + struct.pack("<I", crc32c(head))


def decode_header(raw: bytes | memoryview) -> tuple[Block, int]:
    """The block and its payload's crc32c. Raises BadBlock."""
    if len(raw) != HEADER_BYTES:
        raise BadBlock(f"header cut short: {len(raw)} of {HEADER_BYTES} bytes")
    magic, version, position, key, parent, length, payload_crc = _FIXED.unpack_from(raw)
    if magic != _MAGIC or version != _VERSION:
        raise BadBlock(f"not a block of version {_VERSION}")
    if crc32c(raw[:-4]) != struct.unpack("<I", raw[-4:])[0]:
        raise BadBlock("header checksum differs")
    block = Block(key, parent, position, length, bytes(raw[_FIXED.size : -4]))
    if fault := block.fault():
        raise BadBlock(fault)
    return block, payload_crc
