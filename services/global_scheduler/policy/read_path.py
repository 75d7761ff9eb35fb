"""Which side reads a request's hit from the store (D12), or how much each side reads (D15)."""

import itertools
from collections import Counter
from typing import NamedTuple, Protocol

from services.global_scheduler.policy.fleet import Member
from services.global_scheduler.policy.state import ReadPath, Request


class Reads(NamedTuple):
    """Tokens of the hit that each side reads from the store, and tokens before them that needs nobody read."""

    path: ReadPath
    prefill_tokens: int
    decode_tokens: int
    reused_tokens: int = 0


class PathChoice(Protocol):
    def __call__(self, request: Request, prefill: Member, decode: Member) -> Reads: ...


def prefill_side(request: Request, prefill: Member, decode: Member) -> Reads:
    """The prefill engine reads, as without a second path."""
    held = request.held_by(prefill.engine_id)
    return Reads(ReadPath.PREFILL, request.cached_tokens - held, 0, held)


def decode_side(request: Request, prefill: Member, decode: Member) -> Reads:
    held = request.held_by(decode.engine_id)
    return Reads(ReadPath.DECODE, 0, request.cached_tokens - held, held)


def shorter_queue(request: Request, prefill: Member, decode: Member) -> Reads:
    """D12: the side whose node's read queue is shorter, also by what the engine holds of the hit; the prefill side if
    they are equal."""
    here = prefill.node.read_queue_tokens - request.held_by(prefill.engine_id)
    if decode.node.read_queue_tokens - request.held_by(decode.engine_id) < here:
        return decode_side(request, prefill, decode)
    return prefill_side(request, prefill, decode)


def split(request: Request, prefill: Member, decode: Member) -> Reads:
    """D15: of a hit of c behind queues p and d the prefill side reads (c + d - p) / 2, within 0 and c and to the next
    whole page; the decode side reads the rest. So at equal bandwidths both sides are done at the same time.

    What the prefill engine holds of the hit makes p so much shorter, and is its to bring. If the decode engine, with
    what it holds, would be done as soon alone, it reads alone.
    """
    return _parts(request, prefill, decode, decode.node.read_queue_tokens - prefill.node.read_queue_tokens)


def halves(request: Request, prefill: Member, decode: Member) -> Reads:
    """As `split` with queues of one length."""
    return _parts(request, prefill, decode, 0)


def _parts(request: Request, prefill: Member, decode: Member, difference: int) -> Reads:
    """`difference`: tokens that the decode side has to read before, less those of the prefill side."""
    hit, page = request.cached_tokens, prefill.page_tokens
    here, there = request.held_by(prefill.engine_id), request.held_by(decode.engine_id)
    tokens = min(max((hit + here + difference + page) // (2 * page) * page, here), hit)
    if there:
        together = max(tokens - here, difference + hit - tokens if tokens < hit else 0)
        if difference + hit - there <= together:
            return decode_side(request, prefill, decode)
    if tokens == hit:
        return prefill_side(request, prefill, decode)
    if not tokens:
        return decode_side(request, prefill, decode)
    return Reads(ReadPath.SPLIT, tokens - here, hit - tokens, here)


class Alternating:
    """Round robin over the two sides, even for each engine: each reads, on its side, for every other of its requests.
    A plain flip would keep step with engines that are chosen in turn, and some would never read."""

    def __init__(self) -> None:
        self._surplus: Counter[str] = Counter()  # of an engine's requests: prefill side's reads less decode side's
        self._last = decode_side

    def __call__(self, request: Request, prefill: Member, decode: Member) -> Reads:
        surplus = self._surplus[prefill.engine_id] + self._surplus[decode.engine_id]
        if surplus:
            side = decode_side if surplus > 0 else prefill_side
        else:
            side = prefill_side if self._last is decode_side else decode_side
        self._last = side
        change = 1 if side is prefill_side else -1
        self._surplus[prefill.engine_id] += change
        self._surplus[decode.engine_id] += change
        return side(request, prefill, decode)


class InTurns:
    """One choice after the other."""

    def __init__(self, *choices: PathChoice) -> None:
        self._choices = itertools.cycle(choices)

    def __call__(self, request: Request, prefill: Member, decode: Member) -> Reads:
        return next(self._choices)(request, prefill, decode)
