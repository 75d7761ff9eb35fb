"""Names of hand-overs between two engines, as both engines' request records carry them."""

import secrets
import zlib


def engine_number(engine_id: str, epoch: int) -> int:
    """32 bits that stand for one life of an engine. Two engines may share them: then a hand-over asks the wrong one,
    which knows nothing of it, and is tried again."""
    return zlib.crc32(f"{engine_id}/{epoch}".encode())


def new_transfer(engine_id: str, epoch: int) -> int:
    """A name for one attempt of one request, to be decoded by that engine: never 0, never used again."""
    return engine_number(engine_id, epoch) << 32 | 1 + secrets.randbelow(2**32 - 1)


def decoder_number(transfer: int) -> int:
    """The `engine_number` of the one that decodes."""
    return transfer >> 32
