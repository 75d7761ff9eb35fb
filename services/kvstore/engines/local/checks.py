"""What may be written and read, and what the channels' answers mean. Pure."""

import errno
import os

from services.kvstore import _segments
from services.kvstore.block import BadBlock
from services.kvstore.engines import Read, Write
from services.kvstore.engines.local import record as on_disk
from services.kvstore.engines.local.places import Place


def loss(result: int, place: Place) -> Exception | None:
    """What to say of a read. EIO is for good; of other errors a later read may know nothing."""
    if result == _segments.DONE:
        return None
    if result == _segments.NOT_THERE:
        return BadBlock("another block lies there, or none")
    if result == _segments.WRONG_BYTES:
        return BadBlock("payload checksum differs")
    if result == errno.EIO:
        return BadBlock("the disk can't read it")
    return OSError(result, os.strerror(result), str(place.segment.path))


def request(read: Read, place: Place) -> tuple[int, int, int, bytes, int, memoryview]:
    """As `Channels.read` takes it."""
    identity = on_disk.identity(read.key, read.length, place.segment.nonce, place.offset)
    return (*place.segment.file, place.offset, identity, read.offset, read.into)


def unfit(write: Write) -> BadBlock | None:
    """Why it can't be written, if so."""
    length = write.block.length
    if not 0 < length <= _segments.LARGEST_BLOCK:
        return BadBlock(f"a block of {length} bytes; here they have 1 to {_segments.LARGEST_BLOCK}")
    if write.data.nbytes != length:
        return BadBlock(f"payload of {write.data.nbytes} bytes, not {length}")
    return None


def no_slice(read: Read, place: Place | None) -> BadBlock | None:
    """Why it can't be read from there, if so; `place` None: the block is gone."""
    if place is None:
        return BadBlock("it is gone")
    if on_disk.footprint(read.length) != place.end - place.offset:
        return BadBlock("another block lies there")
    if not 0 < read.into.nbytes <= read.length - read.offset or read.offset < 0:
        return BadBlock(f"bytes {read.offset} to {read.offset + read.into.nbytes} of a block of {read.length}")
    return None
