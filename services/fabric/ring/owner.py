"""The engine's side of a ring that is not the scheduler: making it, leasing it, looking at it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric._ring import EngineState, LeaseState, SlotState
from services.fabric.region import MemoryRegion
from services.fabric.ring.layout import HEADER, LEASE, RECORD, RingGeometry, Share, Slots, header_field_offset, unpack

_HEARTBEAT_AT = header_field_offset("heartbeat")
_ENGINE_STATE_AT = header_field_offset("engine_state")
_LEASES_AT = header_field_offset("leases")


class RingOwner:
    """Initialises a ring at the start of `region`, which stays the caller's to close.

    The scheduler takes `buffer` and owns the slots that are not empty; this class never touches those.
    """

    front_ends = _ring.FRONT_ENDS

    def __init__(
        self,
        region: MemoryRegion,
        geometry: RingGeometry,
        *,
        epoch: int,
        max_context: int,
        vocab_size: int,
        page_count: int,
    ) -> None:
        fields = geometry.fields()
        if fields["size_bytes"] > region.length:
            raise ValueError(f"the ring needs {fields['size_bytes']} bytes, region {region.path} has {region.length}")
        self.region = region
        self.geometry = geometry
        self.epoch = epoch
        self.buffer: NDArray[np.uint8] = region.view[: fields["size_bytes"]]
        header = self.buffer[: HEADER.itemsize].view(HEADER)[0]
        for name, value in fields.items():
            if name != "magic":
                header[name] = value
        header["epoch"], header["max_context"] = epoch, max_context
        header["vocab_size"], header["page_count"] = vocab_size, page_count
        self._leases = self.buffer[_LEASES_AT : _LEASES_AT + LEASE.itemsize * self.front_ends].view(LEASE)
        records_at, words_at = fields["records_offset"], fields["words_offset"]
        records_end = records_at + RECORD.itemsize * geometry.slots
        self.records: NDArray[Any] = self.buffer[records_at:records_end].view(RECORD)
        """A live view of what front ends ask, by slot: true where the slot's word says that there is a request."""
        self._words_at = words_at
        _ring.store_release_u64(self.buffer, header_field_offset("magic"), fields["magic"])

    # --- engine ---

    @property
    def heartbeat(self) -> int:
        """Turns of the scheduler's loop so far."""
        return _ring.load_acquire_u64(self.buffer, _HEARTBEAT_AT)

    @property
    def engine_state(self) -> EngineState:
        """As the scheduler last said."""
        state = np.empty(1, np.uint32)
        _ring.read_into(self.buffer, _ENGINE_STATE_AT, state)
        return EngineState(int(state[0]))

    def set_engine_state(self, state: EngineState) -> None:
        _ring.write_from(self.buffer, _ENGINE_STATE_AT, np.uint32(state).tobytes())

    def slots(self) -> Slots:
        """All slot words, taken apart. Safe for any thread."""
        words = np.empty(self.geometry.slots, np.uint64)
        _ring.read_into(self.buffer, self._words_at, words)
        return unpack(words)

    def slot_states(self) -> list[int]:
        """How many slots are in each state, indexed by SlotState."""
        counts: list[int] = np.bincount(self.slots().states, minlength=len(SlotState)).tolist()
        return counts

    # --- leases ---

    def share(self, front_end: int) -> Share:
        """Equal parts of slots and arenas for each front-end place; this is part `front_end`."""
        slots = self.geometry.slots // self.front_ends
        prompt = self.geometry.prompt_words // self.front_ends
        token = self.geometry.token_words // self.front_ends
        return Share(front_end, front_end * slots, slots, front_end * prompt, prompt, front_end * token, token)

    def lease_state(self, front_end: int) -> LeaseState:
        return LeaseState(int(self._lease(front_end)["active"]))

    def grant(self, share: Share) -> None:
        """Leases a free place. Every slot of it gets a new generation, so that what an earlier holder
        may still try to publish or release there fails.

        Raises RuntimeError if the place is not free or one of its slots not empty.
        """
        if (state := self.lease_state(share.front_end)) is not LeaseState.FREE:
            raise RuntimeError(f"front-end place {share.front_end} is {state.name.lower()}, not free")
        span = slice(share.slot_begin, share.slot_begin + share.slot_count)
        slots = self.slots()
        if slots.states[span].any():
            busy = int(np.flatnonzero(slots.states[span])[0]) + share.slot_begin
            raise RuntimeError(f"slot {busy} of free front-end place {share.front_end} is not empty")
        offsets = self._words_at + 8 * np.arange(span.start, span.stop, dtype=np.uint64)
        words = [_empty(_ring.next_generation(generation)) for generation in slots.generations[span].tolist()]
        _ring.store_release_many(self.buffer, offsets, np.array(words, np.uint64))
        lease = self._lease(share.front_end)
        lease["slot_begin"], lease["slot_count"] = share.slot_begin, share.slot_count
        lease["prompt_begin"], lease["prompt_count"] = share.prompt_begin, share.prompt_count
        lease["token_begin"], lease["token_count"] = share.token_begin, share.token_count
        self._set_lease_state(share.front_end, LeaseState.LEASED)

    def end(self, front_end: int) -> None:
        """Ends a lease: the scheduler completes and empties its slots, then frees the place. Idempotent."""
        if self.lease_state(front_end) is LeaseState.LEASED:
            self._set_lease_state(front_end, LeaseState.ENDED)

    def _lease(self, front_end: int) -> Any:
        return self._leases[front_end]

    def _set_lease_state(self, front_end: int, state: LeaseState) -> None:
        at = _LEASES_AT + front_end * LEASE.itemsize + _ring.FRONT_END_LEASE["offsets"][0]
        _ring.write_from(self.buffer, at, np.uint32(state).tobytes())


def _empty(generation: int) -> int:
    return _ring.slot_word(SlotState.EMPTY, _ring.Finish.NONE, generation, 0)
