"""What the engine says of itself, from the ring's slots and the scheduler's counters (D9)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hostless.v1 import scheduler_pb2 as pb
from services.fabric.ring import RingOwner, SlotState

UNFINISHED = (
    SlotState.PREFILL_PENDING,
    SlotState.PREFILL_PROCESSING,
    SlotState.DECODE_PROCESSING,
    SlotState.DECODE_PAUSED,
    SlotState.KV_PENDING,
)
"""States of a slot whose request has not ended."""

# By state, for all that a word's four bits can hold.
_UNFINISHED = np.isin(np.arange(16), UNFINISHED)


@dataclass(frozen=True, slots=True)
class RingLoad:
    """A look at the whole ring. Tokens are those of unfinished requests, prompt and completion so far."""

    slot_states: list[int]  # slots in each SlotState
    requests: int  # seq_e
    tokens: int  # tok_e

    @property
    def prefilled_elsewhere(self) -> int:
        """Of the requests, those whose getting on is not this engine's to see to."""
        return self.slot_states[SlotState.KV_PENDING]


def read_load(ring: RingOwner) -> RingLoad:
    """A ring's load, in some tens of microseconds for 4,096 slots. Safe for any thread."""
    slots = ring.slots()
    unfinished = np.flatnonzero(_UNFINISHED[slots.states])
    prompts = int(ring.records["prompt_count"][unfinished].sum(dtype=np.uint64))
    return RingLoad(
        slot_states=np.bincount(slots.states, minlength=len(SlotState)).tolist(),
        requests=len(unfinished),
        tokens=prompts + int(slots.tokens[unfinished].sum(dtype=np.uint64)),
    )


def unfinished(ring: RingOwner) -> frozenset[tuple[int, int]]:
    """Slot and generation of each request that has not ended."""
    slots = ring.slots()
    found = np.flatnonzero(_UNFINISHED[slots.states])
    return frozenset(zip(found.tolist(), slots.generations[found].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class StoreTraffic:
    """What the KV agent tells; all 0 without one."""

    read_queue_tokens: int = 0  # read_q
    blocks_stored: int = 0
    blocks_dropped: int = 0
    held_added: bytes = b""  # marks of blocks
    held_removed: bytes = b""


def make_report(
    engine_id: str, load: RingLoad, counters: Mapping[str, int], store: StoreTraffic, accepting: bool
) -> pb.EngineReport:
    """`counters` are the scheduler core's, by the names of state.hpp's Counters."""
    return pb.EngineReport(
        engine_id=engine_id,
        requests=load.requests,
        tokens=load.tokens,
        read_queue_tokens=store.read_queue_tokens,
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
        blocks_stored=store.blocks_stored,
        blocks_dropped=counters["blocks_dropped"] + store.blocks_dropped,
        accepting=accepting,
        held_added=store.held_added,
        held_removed=store.held_removed,
    )
