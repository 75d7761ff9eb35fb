"""Where the agent finds the tokens of a prompt: in the ring, as the front end wrote them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric.ring import RingOwner
from services.fabric.ring.layout import RECORD


class Prompts(Protocol):
    def tokens(self, slot: int, generation: int, count: int) -> NDArray[np.uint32]:
        """A copy of the first `count` prompt tokens; fewer when the prompt is shorter, none when the slot
        holds another request."""
        ...


class RingPrompts:
    """Reads records and the prompt arena. A request that was cancelled may be overwritten while this reads;
    nobody waits for it then, and keys of mixed tokens are found in no store."""

    def __init__(self, ring: RingOwner) -> None:
        fields = ring.geometry.fields()
        self._buffer = ring.buffer
        self._records_at, self._prompt_at = fields["records_offset"], fields["prompt_offset"]
        self._words = fields["prompt_words"]

    def tokens(self, slot: int, generation: int, count: int) -> NDArray[np.uint32]:
        record = np.empty(1, RECORD)
        _ring.read_into(self._buffer, self._records_at + slot * RECORD.itemsize, record.view(np.uint8))
        begin, length = int(record["prompt_begin"][0]), int(record["prompt_count"][0])
        if int(record["generation"][0]) != generation or begin + length > self._words:
            return np.empty(0, np.uint32)
        tokens = np.empty(min(count, length), np.uint32)
        _ring.read_into(self._buffer, self._prompt_at + 4 * begin, tokens.view(np.uint8))
        return tokens
