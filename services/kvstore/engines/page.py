"""The page before a block's bytes, in the engines `files` and `mooncake`: who the block is, and how to check any slice.

    magic 8 | version u32 | position u32 | key 16 | parent 16 | length u32 | piece u32 | tokens 64 x u32
    | crc32c of the bytes from 0 to the end of each piece, up to 512 x u32 | zeros | crc32c of the page before it, u32

All little endian, 4096 bytes. The key is checked against parent and tokens, so a page can't lie about its block. A
slice that is whole pieces is verified in one go: from the sum before its first piece, its bytes must lead to the sum of
its last one.
"""

import struct
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from services.common.keys import BLOCK_TOKENS
from services.kvstore.block import BadBlock, Block

PAGE_BYTES = 4096
MOST_PIECES = 512
LEAST_PIECE = 64 << 10
LARGEST_BLOCK = 1 << 30

_MAGIC = b"HLSBLOCK"
_VERSION = 2
_FIXED = struct.Struct("<8sII16s16sII")
_TOKEN_BYTES = 4 * BLOCK_TOKENS
_SUMS_AT = _FIXED.size + _TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Page:
    """`sums[i]` is the crc32c of the block's first i pieces of `piece` bytes; the last piece may be shorter."""

    block: Block
    piece: int
    sums: NDArray[np.uint32]

    def around(self, offset: int, length: int) -> tuple[int, int]:
        """The bounds of the pieces that hold the slice. Raises BadBlock when it reaches beyond the block."""
        if offset + length > self.block.length:
            raise BadBlock(f"bytes {offset} to {offset + length} of a block of {self.block.length}")
        return around(self.block.length, offset, length)

    def verify(self, begin: int, data: memoryview) -> None:
        """`data` are whole pieces of the block, from `begin`. Raises BadBlock."""
        first, last = begin // self.piece, -(-(begin + len(data)) // self.piece)
        if crc32c(data, int(self.sums[first])) != self.sums[last]:
            raise BadBlock("payload checksum differs")

    def require(self, key: bytes, length: int) -> None:
        """Raises BadBlock unless this is the page of that block."""
        if self.block.key != key or self.block.length != length:
            raise BadBlock("another block lies there")


def make(block: Block, data: memoryview, crc: int) -> bytes:
    """The page of a block with these bytes. Raises BadBlock when they are not what the writer said."""
    if len(data) != block.length:
        raise BadBlock(f"payload of {len(data)} bytes, not {block.length}")
    piece = piece_bytes(block.length)
    sums = [0]
    for at in range(0, block.length, piece):
        sums.append(crc32c(data[at : at + piece], sums[-1]))
    if sums[-1] != crc:
        raise BadBlock("payload checksum differs")
    head = _FIXED.pack(_MAGIC, _VERSION, block.position, block.key, block.parent, block.length, piece)
    page = (head + block.tokens + np.array(sums[1:], "<u4").tobytes()).ljust(PAGE_BYTES - 4, b"\0")
    return page + struct.pack("<I", crc32c(page))


def parse(raw: bytes | bytearray | memoryview) -> Page:
    """Raises BadBlock."""
    if len(raw) != PAGE_BYTES:
        raise BadBlock(f"header cut short: {len(raw)} of {PAGE_BYTES} bytes")
    magic, version, position, key, parent, length, piece = _FIXED.unpack_from(raw)
    if magic != _MAGIC or version != _VERSION:
        raise BadBlock(f"not a block of version {_VERSION}")
    if crc32c(raw[:-4]) != struct.unpack("<I", raw[-4:])[0]:
        raise BadBlock("header checksum differs")
    block = Block(key, parent, position, length, bytes(raw[_FIXED.size : _SUMS_AT]))
    if fault := block.fault():
        raise BadBlock(fault)
    if piece != piece_bytes(length):
        raise BadBlock(f"pieces of {piece} bytes")
    sums = np.zeros(-(-length // piece) + 1, np.uint32)
    sums[1:] = np.frombuffer(raw, "<u4", len(sums) - 1, _SUMS_AT)
    return Page(block, piece, sums)


def piece_bytes(length: int) -> int:
    """A power of two of at least 64 KiB, such that there are at most 512."""
    piece = LEAST_PIECE
    while piece * MOST_PIECES < length:
        piece *= 2
    return piece


def around(block_bytes: int, offset: int, length: int) -> tuple[int, int]:
    """The bounds of the pieces that hold a slice of a block of `block_bytes`."""
    piece = piece_bytes(block_bytes)
    begin, end = offset // piece * piece, -(-(offset + length) // piece) * piece
    return begin, min(end, block_bytes)
