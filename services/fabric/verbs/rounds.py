"""Turns operations into rounds: what fits into the staging memory and under one doorbell. Pure.

verbs_core.hpp does the same for the native core.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from services.fabric.operations import Atomic, CompareSwap, Operation, Read, Write
from services.fabric.verbs.core import DEPTH, WORD, Kind


@dataclass(frozen=True, slots=True)
class Piece:
    """Of operation `index`: its bytes [begin, end) at `staged` of the staging memory and `offset` of the region.

    A read brings `lead` bytes before them and some behind, so that it takes whole words: a device reads
    memory by words, and part of one would be torn from the rest.
    """

    kind: Kind
    index: int
    begin: int
    end: int
    offset: int
    staged: int
    lead: int = 0
    length: int = 0  # bytes that move


@dataclass(slots=True)
class Round:
    pieces: list[Piece] = field(default_factory=list)
    staged: int = 0


def rounds(
    operations: Sequence[Operation], lengths: Sequence[int], length: int, staging: int, depth: int = DEPTH
) -> Iterator[Round]:
    """Rounds of at most `depth` pieces and `staging` bytes, in order. `length` is the region's, `lengths` the
    operations'; empty ones have no piece."""
    now = Round()
    for index, (operation, size) in enumerate(zip(operations, lengths, strict=True)):
        done = 0
        while done < size:
            room = staging - now.staged
            if len(now.pieces) == depth or room < min(size - done, WORD) + 2 * WORD:
                yield now
                now = Round()
                room = staging
            piece = _piece(operation, index, done, size, length, now.staged, room)
            now.pieces.append(piece)
            now.staged += -(-piece.length // WORD) * WORD
            done = piece.end
    if now.pieces:
        yield now


def _piece(operation: Operation, index: int, done: int, size: int, length: int, staged: int, room: int) -> Piece:
    at = operation.offset + done
    if isinstance(operation, Atomic):
        kind = Kind.SWAP if isinstance(operation, CompareSwap) else Kind.ADD
        return Piece(kind, index, done, size, at, staged, length=WORD)
    if isinstance(operation, Write):
        take = min(size - done, room)
        take = take if done + take == size else take // WORD * WORD
        return Piece(Kind.WRITE, index, done, done + take, at, staged, length=take)
    assert isinstance(operation, Read)
    lead = at % WORD
    take = min(size - done, (room - 2 * WORD) // WORD * WORD)
    behind = -(at + take) % WORD
    whole = min(lead + take + behind, length - (at - lead))
    return Piece(Kind.READ, index, done, done + take, at - lead, staged, lead, whole)
