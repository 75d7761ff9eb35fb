"""Requests laid out in a share by whoever has it for itself: benches, the profiler. Front ends track their slots."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric._ring import Finish, RecordFlags, SlotState
from services.fabric.ring.client import RingClient
from services.fabric.ring.layout import RECORD, Slots, unpack


class Burst:
    """Greedy requests that go on after end tokens and are not stored: one slot each, from the share's first on, which
    must be empty. `records` (dtype RECORD) may be changed until they are submitted."""

    def __init__(self, client: RingClient, prompts: Sequence[NDArray[np.uint32]], most: Sequence[int]) -> None:
        """most: tokens of each answer. Submitting raises OutOfBounds if the share is too small."""
        share, n = client.share, len(prompts)
        self.slots = np.uint64(share.slot_begin) + np.arange(n, dtype=np.uint64)
        self.records = np.zeros(n, RECORD)
        records = self.records
        records["generation"] = [_ring.next_generation(int(each)) for each in self._read(client, n).generations]
        records["prompt_count"], records["max_tokens"] = [len(prompt) for prompt in prompts], most
        records["prompt_begin"] = share.prompt_begin + _begins(records["prompt_count"])
        records["token_begin"] = share.token_begin + _begins(records["max_tokens"])
        records["top_p"], records["flags"] = 1, int(RecordFlags.IGNORE_EOS | RecordFlags.NO_PERSIST)
        self._client, self._prompts = client, prompts

    def submit(self, which: slice = slice(None)) -> None:
        """These requests, in order, by one doorbell. Raises RuntimeError if a slot is not this front end's any more."""
        client, slots, chosen = self._client, self.slots[which], self.records[which]
        chosen["sequence"] = client.submitted + 1 + np.arange(len(chosen))
        begins, counts = (chosen[name].astype(np.uint64) for name in ("prompt_begin", "prompt_count"))
        client.write_prompts(begins, counts, np.concatenate(self._prompts[which]))
        client.write_records(slots, chosen)
        words = client.read_words()[: len(self.slots)][which]
        if not client.publish(slots, words, self._words(SlotState.PREFILL_PENDING, which)).all():
            raise RuntimeError("the ring's slots are another front end's")

    def look(self) -> Slots:
        """How far each request is."""
        return self._read(self._client, len(self.slots))

    def answers(self) -> list[list[int]]:
        """The tokens that each request has so far."""
        counts = self.look().tokens.astype(np.uint64)
        tokens = self._client.read_tokens(self.records["token_begin"].astype(np.uint64), counts)
        return [each.tolist() for each in np.split(tokens, np.cumsum(counts)[:-1].astype(np.int64))]

    def release(self) -> None:
        """Of all slots; raises RuntimeError if not all are completed, and as `submit` does."""
        words = self._client.read_words()[: len(self.slots)]
        if (unpack(words).states != SlotState.DECODE_COMPLETED).any():
            raise RuntimeError("not all requests of the burst have ended")
        if not self._client.release(self.slots, words, self._words(SlotState.EMPTY)).all():
            raise RuntimeError("the ring's slots are another front end's")

    def _words(self, state: SlotState, which: slice = slice(None)) -> NDArray[np.uint64]:
        generations = self.records["generation"][which].tolist()
        return np.array([_ring.slot_word(state, Finish.NONE, each, 0) for each in generations], np.uint64)

    @staticmethod
    def _read(client: RingClient, count: int) -> Slots:
        return unpack(client.read_words()[:count])


def _begins(counts: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Of ranges one behind the other."""
    ends: NDArray[np.uint64] = np.cumsum(counts, dtype=np.uint64)
    return ends - counts.astype(np.uint64)
