"""What the engine says of itself, from the ring's slots and the scheduler's counters (D9)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hostless.v1 import scheduler_pb2 as pb
from services.fabric import _ring
from services.fabric.ring import RingOwner, SlotState
from services.fabric.ring.layout import RECORD, unpack

UNFINISHED = (
    SlotState.PREFILL_PENDING,
    SlotState.PREFILL_PROCESSING,
    SlotState.DECODE_PROCESSING,
    SlotState.DECODE_PAUSED,
    SlotState.KV_PENDING,
)
"""States of a slot whose request has not ended."""

UNREAD = (SlotState.PREFILL_PENDING, SlotState.PREFILL_PROCESSING, SlotState.KV_PENDING)
"""States in which the stored part of a prompt may still have to be read."""


# By state, for all that a word's four bits can hold.
_UNFINISHED, _UNREAD = (np.isin(np.arange(16), states) for states in (UNFINISHED, UNREAD))


@dataclass(frozen=True, slots=True)
class RingLoad:
    """A look at the whole ring. Tokens are those of unfinished requests, prompt and completion so far."""

    slot_states: list[int]  # slots in each SlotState
    requests: int  # seq_e
    tokens: int  # tok_e
    read_queue_tokens: int  # read_q, at most: what is being computed counts until its first token


class RingGauge:
    """Reads a ring's load; some tens of microseconds for 4,096 slots."""

    def __init__(self, ring: RingOwner) -> None:
        fields, slots = ring.geometry.fields(), ring.geometry.slots
        self._buffer = ring.buffer
        self._words_at = fields["words_offset"]
        self._slots = slots
        records_at = fields["records_offset"]
        self._records = ring.buffer[records_at : records_at + RECORD.itemsize * slots].view(RECORD)

    def read(self) -> RingLoad:
        """Safe for any thread."""
        words = np.empty(self._slots, np.uint64)
        _ring.read_into(self._buffer, self._words_at, words)
        slots = unpack(words)
        unfinished = np.flatnonzero(_UNFINISHED[slots.states])
        unread = np.flatnonzero(_UNREAD[slots.states])
        prompts = int(self._records["prompt_count"][unfinished].sum(dtype=np.uint64))
        return RingLoad(
            slot_states=np.bincount(slots.states, minlength=len(SlotState)).tolist(),
            requests=len(unfinished),
            tokens=prompts + int(slots.tokens[unfinished].sum(dtype=np.uint64)),
            read_queue_tokens=int(self._records["cached_tokens"][unread].sum(dtype=np.uint64)),
        )


def make_report(
    engine_id: str, load: RingLoad, counters: Mapping[str, int], accepting: bool, blocks_stored: int
) -> pb.EngineReport:
    """`counters` are the scheduler core's, by the names of state.hpp's Counters."""
    return pb.EngineReport(
        engine_id=engine_id,
        requests=load.requests,
        tokens=load.tokens,
        read_queue_tokens=load.read_queue_tokens,
        free_pages=counters["free_pages"],
        running=counters["running"],
        waiting=load.requests - min(load.requests, counters["running"]),
        slot_states=load.slot_states,
        prefill_launches=counters["prefill_launches"],
        decode_launches=counters["decode_launches"],
        prompt_tokens=counters["prompt_tokens"],
        cached_tokens=counters["cached_tokens"],
        generated_tokens=counters["generated_tokens"],
        preemptions=counters["preemptions"],
        blocks_stored=blocks_stored,
        blocks_dropped=counters["blocks_dropped"],
        accepting=accepting,
    )
