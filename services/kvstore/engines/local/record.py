"""What stands in a segment file, as bytes: a page before each block, and the footer that ends it.

    page of a block     identity 48: magic 8 | nonce u64 | own offset u64 | key 16 | length u32 | piece u32
                        | parent 16 | position u32 | payload crc u32 | sequence u64 | synced below u64 | tokens 64 x u32
                        | from 1024: crc32c a piece | page crc u32 (native/record.hpp)
    footer              56 a block: offset u64 | sequence u64 | key 16 | parent 16 | position u32 | length u32
    trailer             magic 8 | nonce u64 | offset of the footer u64 | blocks u32 | footer's crc u32 | zeros
                        | page crc u32

All little endian; a page has 4096 bytes. The nonce is the segment's, whose name says it too. `sequence` counts the
store's puts; what lies below `synced below` in its segment was durable when the page was written, so that only what
lies above it must be read again after a crash.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from services.common.keys import BLOCK_TOKENS
from services.kvstore import _segments
from services.kvstore.block import Block, Stored

PAGE = _segments.PAGE
_IDENTITY = struct.Struct("<8sQQ16sII")
_REST = struct.Struct("<16sIIQQ")
_ENTRY = struct.Struct("<QQ16s16sII")
_TRAILER = struct.Struct("<8sQQII")
_CRC = struct.Struct("<I")
_BLOCK_MAGIC, _TRAILER_MAGIC = b"HLSBLCK1", b"HLSTRAI1"
_TOKENS_AT = _IDENTITY.size + _REST.size
_TOKENS_END = _TOKENS_AT + 4 * BLOCK_TOKENS
assert _IDENTITY.size == _segments.IDENTITY_BYTES
assert _TOKENS_END <= _segments.HEAD_BYTES


@dataclass(frozen=True, slots=True)
class Record:
    """A block in a segment. `synced_below` is 0 where a footer vouches for it."""

    offset: int
    sequence: int
    stored: Stored
    synced_below: int = 0

    @property
    def end(self) -> int:
        return self.offset + footprint(self.stored.length)


def footprint(length: int) -> int:
    """Bytes of a segment that a block of `length` payload bytes takes."""
    return PAGE - length // -PAGE * PAGE


def identity(key: bytes, length: int, nonce: int, offset: int) -> bytes:
    """What the page of that block at that place begins with, and no other page anywhere."""
    return _IDENTITY.pack(_BLOCK_MAGIC, nonce, offset, key, length, _segments.piece_bytes(length))


def block_head(block: Block, crc: int, nonce: int, record: Record) -> bytes:
    """A block's page without the checksums, which are added as its bytes are written."""
    head = identity(block.key, block.length, nonce, record.offset)
    head += _REST.pack(block.parent, block.position, crc, record.sequence, record.synced_below) + block.tokens
    return head.ljust(_segments.HEAD_BYTES, b"\0")


def parse_block(page: bytes, nonce: int, offset: int) -> Record | None:
    """The block whose page this is, of that segment and at that place; None: anything else."""
    if not page.startswith(_BLOCK_MAGIC) or not _whole(page):
        return None
    _, its_nonce, its_offset, key, length, _ = _IDENTITY.unpack_from(page)
    parent, position, _, sequence, synced_below = _REST.unpack_from(page, _IDENTITY.size)
    block = Block(key, parent, position, length, page[_TOKENS_AT:_TOKENS_END])
    if (its_nonce, its_offset) != (nonce, offset) or block.fault() or length > _segments.LARGEST_BLOCK:
        return None
    return Record(offset, sequence, block.stored, synced_below)


def footer(records: Iterable[Record]) -> bytes:
    return b"".join(_ENTRY.pack(record.offset, record.sequence, *record.stored) for record in records)


def parse_footer(data: bytes) -> list[Record]:
    return [
        Record(offset, sequence, Stored(key, parent, position, length))
        for offset, sequence, key, parent, position, length in _ENTRY.iter_unpack(data)
    ]


def trailer(nonce: int, offset: int, data: bytes) -> bytes:
    """The last page of a segment whose footer `data` lies at `offset`."""
    return _sealed(_TRAILER.pack(_TRAILER_MAGIC, nonce, offset, len(data) // _ENTRY.size, _segments.crc32c(data)))


def parse_trailer(page: bytes, nonce: int) -> tuple[int, int, int] | None:
    """Offset, length and checksum of the footer; None: this is no trailer of that segment."""
    if not page.startswith(_TRAILER_MAGIC) or not _whole(page):
        return None
    _, its_nonce, offset, count, crc = _TRAILER.unpack_from(page)
    return (offset, count * _ENTRY.size, crc) if its_nonce == nonce else None


def _sealed(content: bytes) -> bytes:
    page = content.ljust(PAGE - _CRC.size, b"\0")
    return page + _CRC.pack(_segments.crc32c(page))


def _whole(page: bytes) -> bool:
    return len(page) == PAGE and _CRC.unpack_from(page, PAGE - 4)[0] == _segments.crc32c(page[:-4])
