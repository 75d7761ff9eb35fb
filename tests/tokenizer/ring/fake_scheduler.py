"""A scheduler in plain Python: plays the engine's side of a ring, and checks what a front end does there.

It answers every request with tokens that follow from its record, so that a test knows them beforehand.
Run as a program it owns a ring in a process of its own: it prints the lease and serves until stdin closes.
"""

import random
import select
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostless.v1 import engine_pb2
from services.fabric import _ring
from services.fabric.region import MemoryRegion
from services.fabric.ring import EngineState, Finish, LeaseState, Owner, RingGeometry, RingOwner, SlotState
from services.fabric.ring.layout import HEADER, RECORD, REPORT, header_field_offset, unpack

VOCAB = 50_000
CONTEXT = 4096
RUNNING = (SlotState.PREFILL_PROCESSING, SlotState.DECODE_PROCESSING, SlotState.DECODE_PAUSED)


def answer(prompt: NDArray[np.uint32], seed: int, max_tokens: int) -> tuple[list[int], Finish]:
    """The tokens that a request gets, and how it ends: every third seed stops early."""
    stops = seed % 3 == 0
    count = seed % max_tokens + 1 if stops else max_tokens
    first = int(prompt.sum(dtype=np.uint64)) * 31 + seed
    return [(first + 7919 * i) % VOCAB for i in range(count)], Finish.STOP if stops else Finish.LENGTH


def make_ring(region: MemoryRegion, geometry: RingGeometry, epoch: int = 1) -> tuple[RingOwner, "FakeScheduler"]:
    owner = RingOwner(region, geometry, epoch=epoch, max_context=CONTEXT, vocab_size=VOCAB, page_count=1000)
    owner.set_engine_state(EngineState.SERVING)
    return owner, FakeScheduler(owner)


def lease_of(owner: RingOwner, place: int, lease_id: int = 1, ttl_ms: int = 60_000) -> engine_pb2.RingLease:
    """Grants a front-end place and says so as the engine's service would."""
    share = owner.share(place)
    owner.grant(share)
    return engine_pb2.RingLease(
        lease_id=lease_id,
        ttl_ms=ttl_ms,
        ring=owner.region.descriptor(),
        front_end=share.front_end,
        slot_begin=share.slot_begin,
        slot_count=share.slot_count,
        prompt_begin=share.prompt_begin,
        prompt_count=share.prompt_count,
        token_begin=share.token_begin,
        token_count=share.token_count,
    )


class FakeScheduler:
    """turn() looks at every slot once. With `rng`, each slot does nothing, a little or a lot, at random."""

    def __init__(self, owner: RingOwner) -> None:
        g = owner.geometry.fields()
        self.owner = owner
        self._buffer = owner.buffer
        self._header = self._view(0, HEADER, 1)[0]
        self._words_at = g["words_offset"]
        self._words = self._view(g["words_offset"], np.dtype(np.uint64), owner.geometry.slots)
        self._cancels = self._view(g["cancels_offset"], np.dtype(np.uint32), owner.geometry.slots)
        self._records = self._view(g["records_offset"], RECORD, owner.geometry.slots)
        self._reports = self._view(g["reports_offset"], REPORT, owner.geometry.slots)
        self._prompts = self._view(g["prompt_offset"], np.dtype(np.uint32), owner.geometry.prompt_words)
        self._tokens = self._view(g["token_offset"], np.dtype(np.uint32), owner.geometry.token_words)
        self._answers: dict[int, tuple[list[int], Finish]] = {}
        self._sequences: dict[int, int] = {}
        self.claimed: list[int] = []

    def turn(self, rng: random.Random | None = None, most: int = 1_000_000) -> bool:
        """Says whether anything was to do."""
        _ring.store_release_u64(self._buffer, header_field_offset("heartbeat"), self.owner.heartbeat + 1)
        busy = False
        for place in range(self.owner.front_ends):
            lease = self._header["leases"].view(np.dtype(_ring.FRONT_END_LEASE))[place]
            if lease["active"] == LeaseState.FREE:
                continue
            span = range(int(lease["slot_begin"]), int(lease["slot_begin"]) + int(lease["slot_count"]))
            if lease["active"] == LeaseState.ENDED:
                self._drain(span)
                self._sequences.pop(place, None)
                self._header["doorbells"][place] = 0
                lease["active"] = LeaseState.FREE
                continue
            self._claim(place, lease, span)
            for slot in self._in(RUNNING, span):
                busy = True
                steps = most if rng is None else rng.choice((0, 0, 1, 1, 2, 5, most))
                self._advance(slot, steps, pause=rng is not None and rng.random() < 0.1)
        return busy

    def _claim(self, place: int, lease: Any, span: range) -> None:
        pending = self._in((SlotState.PREFILL_PENDING,), span)
        for slot in sorted(pending, key=lambda s: int(self._records[s]["sequence"])):
            record = self._records[slot]
            sequence = int(record["sequence"])
            assert sequence == self._sequences.get(place, sequence - 1) + 1, "not first come, first served"
            assert int(record["generation"]) == _ring.unpack_word(self._word(slot))[2]
            for what in ("prompt", "token"):
                begin, count = (
                    int(record[f"{what}_begin"]),
                    int(record["prompt_count" if what == "prompt" else "max_tokens"]),
                )
                leased = int(lease[f"{what}_begin"]), int(lease[f"{what}_count"])
                assert leased[0] <= begin
                assert begin + count <= leased[0] + leased[1]
            begin = int(record["prompt_begin"])
            prompt = self._prompts[begin : begin + int(record["prompt_count"])]
            self._sequences[place] = sequence
            self._answers[slot] = answer(prompt, int(record["seed"]), int(record["max_tokens"]))
            self.claimed.append(slot)
            self._set(slot, SlotState.PREFILL_PROCESSING, Finish.NONE, 0)

    def _advance(self, slot: int, steps: int, pause: bool) -> None:
        state, _, generation, written = _ring.unpack_word(self._word(slot))
        if state is not SlotState.DECODE_PROCESSING:
            self._set(slot, SlotState.DECODE_PROCESSING, Finish.NONE, written)
        if self._cancels[slot] == generation:
            self._complete(slot, generation, Finish.CANCELLED, written)
            return
        tokens, finish = self._answers[slot]
        upto = min(len(tokens), written + steps)
        begin = int(self._records[slot]["token_begin"])
        self._tokens[begin + written : begin + upto] = tokens[written:upto]
        if upto == len(tokens):
            self._complete(slot, generation, finish, upto)
        elif upto > written or pause:
            paused = SlotState.DECODE_PAUSED if pause else SlotState.DECODE_PROCESSING
            self._set(slot, paused, Finish.NONE, upto)

    def _complete(self, slot: int, generation: int, finish: Finish, written: int) -> None:
        self._reports[slot] = (generation, 0, 0, 1, 10, 20, 30, 40)
        self._set(slot, SlotState.DECODE_COMPLETED, finish, written)

    def _drain(self, span: range) -> None:
        for slot in span:
            generation = _ring.unpack_word(self._word(slot))[2]
            self._put(slot, _ring.slot_word(SlotState.EMPTY, Finish.NONE, generation, 0))

    def _in(self, states: tuple[SlotState, ...], span: range) -> list[int]:
        words = np.empty(len(span), np.uint64)
        _ring.read_into(self._buffer, self._words_at + 8 * span.start, words)
        return [span.start + i for i in np.flatnonzero(np.isin(unpack(words).states, states)).tolist()]

    def _set(self, slot: int, state: SlotState, finish: Finish, tokens: int) -> None:
        before, _, generation, _ = _ring.unpack_word(self._word(slot))
        if before is not state:
            assert _ring.transition_owner(before, state) is Owner.SCHEDULER, f"{before!r} -> {state!r}"
        self._put(slot, _ring.slot_word(state, finish, generation, tokens))

    def _put(self, slot: int, word: int) -> None:
        _ring.store_release_u64(self._buffer, self._words_at + 8 * slot, word)

    def _word(self, slot: int) -> int:
        return _ring.load_acquire_u64(self._buffer, self._words_at + 8 * slot)

    def _view(self, at: int, dtype: np.dtype[Any], count: int) -> Any:
        return self._buffer[at : at + dtype.itemsize * count].view(dtype)


def main(directory: str, name: str, slots: int, words: int) -> None:
    geometry = RingGeometry(slots, words, words)
    with MemoryRegion.create(name, geometry.size_bytes, directory=Path(directory)) as region:
        owner, scheduler = make_ring(region, geometry)
        print(lease_of(owner, 0).SerializeToString().hex(), flush=True)
        rng = random.Random(7)
        waiting = 0.0
        while not select.select([sys.stdin], [], [], waiting)[0]:
            waiting = 0.0 if scheduler.turn(rng) else 0.001


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
