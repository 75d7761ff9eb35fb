"""Token reader (B13): one bulk read of slot words a poll, and the new tokens of all streams by a second."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.fabric.ring import Finish, RingClient, SlotState
from services.fabric.ring.layout import Slots, unpack
from services.tokenizer.submission import ShareLost, Submitted

Release = Callable[[Sequence[Submitted], NDArray[np.uint64]], None]
"""Given completed handles and their slot words once nothing of them is needed in the ring."""


class Report(NamedTuple):
    """What happened to a request. Times are the engine's clock, unix ns; 0: did not happen."""

    cached_tokens: int
    preemptions: int
    prefill_chunks: int
    claimed_ns: int
    prefill_ns: int
    first_token_ns: int
    finished_ns: int


class Progress(NamedTuple):
    """News of one request. With the last one come `finish` and `report`, and the slot is free again."""

    handle: Submitted
    tokens: NDArray[np.uint32]  # new ones, in order; a view of this poll's copy
    finish: Finish | None
    report: Report | None


class Poll(NamedTuple):
    """What one poll brought. `more`: there is more than its cap allowed, so poll again at once."""

    progress: list[Progress]
    more: bool


class TokenReader:
    """Follows the published requests of one leased share. Not safe for two threads at a time.

    All per-slot state lies in arrays indexed by the slot's place in the share, so that a poll compares,
    selects and sums without a Python loop; only streams with news cost Python, once each.
    """

    def __init__(self, ring: RingClient, release: Release, tokens_per_poll: int) -> None:
        """`tokens_per_poll` caps the work of a poll; a stream may get a part of its news, none is skipped."""
        n = ring.share.slot_count
        self._ring = ring
        self._release = release
        self._cap = tokens_per_poll
        self._handles: list[Submitted | None] = [None] * n
        self._active = np.zeros(n, np.bool_)
        self._words = np.zeros(n, np.uint64)  # as last dealt with completely
        self._generations = np.zeros(n, np.uint32)
        self._delivered = np.zeros(n, np.int64)
        self._begins = np.zeros(n, np.int64)
        self._room = np.zeros(n, np.int64)
        self._turn = 0  # where in the share the next poll starts, so that a cap starves nobody
        self.in_flight = 0

    def add(self, handles: Sequence[Submitted]) -> None:
        """Follows requests just published."""
        for handle in handles:
            i = handle.slot - self._ring.share.slot_begin
            if self._active[i]:
                raise ValueError(f"slot {handle.slot} is followed already")
            self._handles[i] = handle
            self._active[i] = True
            self._words[i] = handle.word
            self._generations[i] = handle.generation
            self._delivered[i] = 0
            self._begins[i] = handle.tokens.begin
            self._room[i] = handle.tokens.words
        self.in_flight += len(handles)

    def handles(self) -> list[Submitted]:
        """All requests in flight."""
        return [handle for handle in self._handles if handle is not None]

    def poll(self) -> Poll:
        """Reads what is new. Raises ShareLost if a followed slot has another request, or none, in it."""
        if not self.in_flight:
            return Poll([], False)
        words = self._ring.read_words()
        changed = np.flatnonzero((words != self._words) & self._active)
        if not len(changed):
            return Poll([], False)
        changed = self._in_turn(changed)
        slots = unpack(words[changed])
        new = slots.tokens.astype(np.int64) - self._delivered[changed]
        self._still_ours(changed, slots, new)
        before = np.cumsum(new) - new
        take = np.clip(self._cap - before, 0, new)
        whole = take == new
        self._words[changed[whole]] = words[changed[whole]]
        if not whole.all():
            self._turn = int(changed[np.flatnonzero(~whole)[0]])
        done = whole & (slots.states == SlotState.DECODE_COMPLETED)
        news = (take > 0) | done
        progress = self._fetch(changed[news], take[news], done[news], slots.finishes[news])
        self._complete(changed[done], words)
        return Poll(progress, not bool(whole.all()))

    def _in_turn(self, changed: NDArray[np.intp]) -> NDArray[np.intp]:
        """Urgent ones first, which have brought no token yet; then the others, from where the cap last cut."""
        turned = np.roll(changed, -int(np.searchsorted(changed, self._turn)))
        started = self._delivered[turned] > 0
        return np.concatenate((turned[~started], turned[started]))

    def _still_ours(self, indices: NDArray[np.intp], slots: Slots, new: NDArray[np.int64]) -> None:
        foreign = (slots.generations != self._generations[indices]) | (slots.states == SlotState.EMPTY)
        foreign |= (new < 0) | (slots.tokens > self._room[indices]) | (slots.finishes > max(Finish))
        if foreign.any():
            slot = int(indices[np.flatnonzero(foreign)[0]]) + self._ring.share.slot_begin
            raise ShareLost(f"slot {slot} no longer holds the request that was published there")

    def _fetch(
        self,
        indices: NDArray[np.intp],
        take: NDArray[np.int64],
        done: NDArray[np.bool_],
        finishes: NDArray[np.uint8],
    ) -> list[Progress]:
        begins = (self._begins[indices] + self._delivered[indices]).astype(np.uint64)
        tokens = self._ring.read_tokens(begins, take.astype(np.uint64))
        self._delivered[indices] += take
        reports = iter(self._read_reports(indices[done]))
        progress = []
        begin = 0
        for i, count, last, finish in zip(
            indices.tolist(), take.tolist(), done.tolist(), finishes.tolist(), strict=True
        ):
            handle = self._handles[i]
            assert handle is not None
            piece = tokens[begin : begin + count]
            progress.append(
                Progress(handle, piece, Finish(finish), next(reports)) if last else Progress(handle, piece, None, None)
            )
            begin += count
        return progress

    def _read_reports(self, indices: NDArray[np.intp]) -> list[Report]:
        if not len(indices):
            return []
        slots = (indices + self._ring.share.slot_begin).astype(np.uint64)
        rows = self._ring.read_reports(slots)[list(Report._fields)].tolist()
        return [Report(*row) for row in rows]

    def _complete(self, indices: NDArray[np.intp], words: NDArray[np.uint64]) -> None:
        if not len(indices):
            return
        finished = []
        for i in indices.tolist():
            handle = self._handles[i]
            assert handle is not None
            finished.append(handle)
            self._handles[i] = None
        self._active[indices] = False
        self.in_flight -= len(finished)
        self._release(finished, words[indices])
