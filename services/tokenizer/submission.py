"""Submission (B14): a burst of requests becomes a few batched writes and one doorbell."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric.errors import FabricError
from services.fabric.ring import Finish, RingClient, SlotState
from services.fabric.ring.layout import RECORD, kv_reads
from services.tokenizer.arena import Arena, ArenaFull, Span, TooLarge
from services.tokenizer.slots import Claim, SlotTracker, empty_word


class BadRequest(ValueError):
    """The request can't be written to a ring: its message says what is wrong with it."""


class ShareLost(FabricError):
    """A slot is no longer this front end's: the lease has ended, whatever the clock says."""


@dataclass(frozen=True, slots=True, eq=False)
class RingRequest:
    """What an engine needs to know of a request. `tag` is the caller's own and comes back with the tokens."""

    prompt: NDArray[np.uint32]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()  # the first one is the model's end token
    flags: int = 0  # RecordFlags
    cached_tokens: int = 0
    kv_reads: range = range(0)  # of the cached blocks, those that this engine reads from the store
    kv_root: bytes = bytes(16)
    transfer: int = 0  # names the hand-over, where two engines share the request
    receives: bool = False  # its prompt is prefilled by the other one
    tag: object = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Submitted:
    """A request in the ring, from publication to release."""

    request: RingRequest
    slot: int
    generation: int
    word: int  # as it was published
    prompt: Span
    tokens: Span


class Submitter:
    """Places requests into one leased share of a ring and takes their places back.

    Prompts and results have arenas apart, and a prompt goes through a staging buffer of this class,
    which a network transport registers once. Not safe for two threads at a time.
    """

    def __init__(self, ring: RingClient, slots: SlotTracker) -> None:
        share = ring.share
        self._ring = ring
        self._slots = slots
        self._prompts = Arena(share.prompt_begin, share.prompt_count)
        self._tokens = Arena(share.token_begin, share.token_count)
        self._staging = np.empty(max(ring.max_context, 1 << 14), np.uint32)

    @property
    def in_use(self) -> tuple[int, int]:
        """Prompt and token ranges held: (0, 0) when nothing is in the ring."""
        return self._prompts.live, self._tokens.live

    def check(self, request: RingRequest) -> None:
        """Raises BadRequest, or TooLarge if no state of the ring could ever take the request."""
        prompt, room = request.prompt, self._ring.max_context
        if prompt.dtype != np.uint32 or prompt.ndim != 1 or not len(prompt):
            raise BadRequest("a prompt is a non-empty vector of uint32 token ids")
        if request.max_tokens < 1:
            raise BadRequest(f"max_tokens must be at least 1, not {request.max_tokens}")
        if len(prompt) + request.max_tokens > room:
            raise BadRequest(f"{len(prompt)} prompt tokens and {request.max_tokens} more exceed the context of {room}")
        if (highest := int(prompt.max())) >= self._ring.vocab_size:
            raise BadRequest(f"token id {highest} is outside the vocabulary of {self._ring.vocab_size}")
        if not request.temperature >= 0 or not 0 < request.top_p <= 1:
            raise BadRequest(f"temperature {request.temperature} or top_p {request.top_p} is out of range")
        if len(request.stop_ids) > _ring.STOP_IDS:
            raise BadRequest(f"{len(request.stop_ids)} stop ids, at most {_ring.STOP_IDS} fit")
        if request.cached_tokens % _ring.PAGE_TOKENS or request.cached_tokens >= len(prompt):
            raise BadRequest(f"cached_tokens {request.cached_tokens} must be whole pages, short of the prompt's end")
        if len(request.kv_root) != 16:
            raise BadRequest(f"kv_root has {len(request.kv_root)} bytes, not 16")
        for arena, words in ((self._prompts, len(prompt)), (self._tokens, request.max_tokens)):
            if words > arena.capacity:
                raise TooLarge(f"{words} words asked of an arena of {arena.capacity}")

    def submit(self, requests: Sequence[RingRequest], now_ns: int) -> list[Submitted]:
        """Publishes as many of the requests as fit now, in order; the rest stay the caller's.

        Raises what check() raises, before anything is written, and ShareLost.
        """
        for request in requests:
            self.check(request)
        done: list[Submitted] = []
        while burst := self._place(requests[len(done) :]):
            self._write(burst, now_ns)
            self._publish(burst)
            done += [handle for handle, _ in burst]
        return done

    def release(self, handles: Sequence[Submitted], words: NDArray[np.uint64]) -> None:
        """Empties completed slots, whose words are given, when their tokens and reports have been copied.

        Raises ShareLost.
        """
        slots = np.array([handle.slot for handle in handles], np.uint64)
        empty = np.array([empty_word(handle.generation) for handle in handles], np.uint64)
        released = self._ring.release(slots, words, empty)
        _all_ours(released, slots)
        for handle, word in zip(handles, empty.tolist(), strict=True):
            self._prompts.free(handle.prompt)
            self._tokens.free(handle.tokens)
            self._slots.release(handle.slot, word)

    def cancel(self, handles: Iterable[Submitted]) -> None:
        """Asks the scheduler to end these requests; each still ends by its completion."""
        pairs = [(handle.slot, handle.generation) for handle in handles]
        if pairs:
            slots, generations = zip(*pairs, strict=True)
            self._ring.cancel(np.array(slots, np.uint64), np.array(generations, np.uint32))

    def _place(self, requests: Sequence[RingRequest]) -> list[tuple[Submitted, Claim]]:
        """The longest run of requests, from the first, that have a slot, both ranges and staging room."""
        burst: list[tuple[Submitted, Claim]] = []
        staged = 0
        for request in requests:
            staged += len(request.prompt)
            if staged > len(self._staging) or not (placed := self._place_one(request)):
                break
            burst.append(placed)
        return burst

    def _place_one(self, request: RingRequest) -> tuple[Submitted, Claim] | None:
        if not self._slots.available:
            return None
        try:
            prompt = self._prompts.allocate(len(request.prompt))
        except ArenaFull:
            return None
        try:
            tokens = self._tokens.allocate(request.max_tokens)
        except ArenaFull:
            self._prompts.free(prompt)
            return None
        claim = self._slots.acquire()
        assert claim is not None
        state = SlotState.KV_PENDING if request.receives else SlotState.PREFILL_PENDING
        word = _ring.slot_word(state, Finish.NONE, claim.generation, 0)
        return Submitted(request, claim.slot, claim.generation, word, prompt, tokens), claim

    def _write(self, burst: Sequence[tuple[Submitted, Claim]], now_ns: int) -> None:
        handles = [handle for handle, _ in burst]
        counts = np.array([handle.prompt.words for handle in handles], np.uint64)
        staged = self._staging[: int(counts.sum())]
        np.concatenate([handle.request.prompt for handle in handles], out=staged)
        begins = np.array([handle.prompt.begin for handle in handles], np.uint64)
        self._ring.write_prompts(begins, counts, staged)
        sequence = self._ring.submitted
        records = np.array([_record(h, sequence + i + 1, now_ns) for i, h in enumerate(handles)], RECORD)
        self._ring.write_records(np.array([handle.slot for handle in handles], np.uint64), records)

    def _publish(self, burst: Sequence[tuple[Submitted, Claim]]) -> None:
        slots = np.array([handle.slot for handle, _ in burst], np.uint64)
        expected = np.array([claim.expected for _, claim in burst], np.uint64)
        desired = np.array([handle.word for handle, _ in burst], np.uint64)
        _all_ours(self._ring.publish(slots, expected, desired), slots)


def _record(handle: Submitted, sequence: int, now_ns: int) -> tuple[object, ...]:
    """One element of dtype RECORD, in the order of its fields."""
    r = handle.request
    values = {
        "generation": handle.generation,
        "sequence": sequence & 0xFFFFFFFF,
        "prompt_begin": handle.prompt.begin,
        "prompt_count": handle.prompt.words,
        "token_begin": handle.tokens.begin,
        "max_tokens": r.max_tokens,
        "temperature": r.temperature,
        "top_p": r.top_p,
        "top_k": r.top_k,
        "flags": r.flags,
        "seed": r.seed & (2**64 - 1),
        "stop_count": len(r.stop_ids),
        "cached_tokens": r.cached_tokens,
        "kv_reads": kv_reads(r.kv_reads.start, r.kv_reads.stop),
        "kv_root": tuple(r.kv_root),
        "stop_ids": r.stop_ids + (0,) * (_ring.STOP_IDS - len(r.stop_ids)),
        "submitted_ns": now_ns,
        "transfer": r.transfer,
    }
    return tuple(values[name] for name in RECORD.names or ())


def _all_ours(swapped: NDArray[np.bool_], slots: NDArray[np.uint64]) -> None:
    if not swapped.all():
        slot = int(slots[np.flatnonzero(~swapped)[0]])
        raise ShareLost(f"slot {slot} was changed by another: this front end's lease has ended")
