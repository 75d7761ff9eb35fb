"""The front end's side of a ring (B7, B12-B14), by one-sided operations only."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.fabric._ring import EngineState
from services.fabric.errors import OutOfBounds
from services.fabric.remote_region import RemoteRegion
from services.fabric.ring.layout import (
    HEADER,
    RECORD,
    REPORT,
    NotARing,
    Share,
    check_header,
    check_share,
    header_field_offset,
)

_EPOCH_AT = header_field_offset("epoch")
_DOORBELLS_AT = header_field_offset("doorbells")
_HEARTBEAT_AT = header_field_offset("heartbeat")
_STATUS_BYTES = header_field_offset("engine_state") + 4 - _HEARTBEAT_AT


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What an engine says of itself in the ring's header."""

    epoch: int
    heartbeat: int
    state: EngineState


class RingClient:
    """One front end's share of a ring. Slot numbers are absolute; so are arena words.

    All methods raise what RemoteRegion raises; reaching outside the share raises OutOfBounds. Safe for
    one thread at a time.
    """

    def __init__(self, region: RemoteRegion, share: Share) -> None:
        """Reads the header. Raises NotARing."""
        header = np.frombuffer(region.read(0, HEADER.itemsize), HEADER)[0]
        check_header(header, region.descriptor.length)
        check_share(header, share)
        self.share = share
        self.epoch = int(header["epoch"])
        self.max_context = int(header["max_context"])
        self.vocab_size = int(header["vocab_size"])
        self.submitted = int(header["doorbells"][share.front_end])
        self._region = region
        self._words_at = int(header["words_offset"])
        self._cancels_at = int(header["cancels_offset"])
        self._records_at = int(header["records_offset"])
        self._reports_at = int(header["reports_offset"])
        self._prompt_at = int(header["prompt_offset"])
        self._token_at = int(header["token_offset"])
        self._doorbell_at = _DOORBELLS_AT + 8 * share.front_end

    # --- reading ---

    def read_status(self) -> EngineStatus:
        line = self._region.read(_HEARTBEAT_AT, _STATUS_BYTES)
        epoch = self._region.read(_EPOCH_AT, 8)
        try:
            state = EngineState(int.from_bytes(line[-4:], "little"))
        except ValueError as error:
            raise NotARing(f"what the ring says of its engine is no state: {error}") from None
        return EngineStatus(int.from_bytes(epoch, "little"), int.from_bytes(line[:8], "little"), state)

    def read_words(self) -> NDArray[np.uint64]:
        """All slot words of the share, by one bulk read (B12, B13). What a word announces may be read after it."""
        words = np.empty(self.share.slot_count, np.uint64)
        self._region.read_into(self._words_at + 8 * self.share.slot_begin, words)
        return words

    def read_tokens(self, begins: NDArray[np.uint64], counts: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """The words [begin, begin + count) of the token arena, range behind range. A copy."""
        self._inside("token arena", begins, counts, self.share.token_begin, self.share.token_count)
        tokens = np.empty(int(counts.sum()), np.uint32)
        self._region.gather(self._token_at + 4 * begins, 4 * counts, tokens)
        return tokens

    def read_reports(self, slots: NDArray[np.uint64]) -> NDArray[Any]:
        """The reports (dtype REPORT) of completed slots; read them before releasing the slots."""
        self._slots_inside(slots)
        reports = np.empty(len(slots), REPORT)
        self._region.gather(self._reports_at + REPORT.itemsize * slots, _all(REPORT.itemsize, slots), reports)
        return reports

    # --- submitting (B14): prompts and records first, in any order, then publish ---

    def write_prompts(self, begins: NDArray[np.uint64], counts: NDArray[np.uint64], words: NDArray[np.uint32]) -> None:
        """Writes the prompts that stand in `words` one behind the other, each to its place in the prompt arena."""
        self._inside("prompt arena", begins, counts, self.share.prompt_begin, self.share.prompt_count)
        self._region.scatter(self._prompt_at + 4 * begins, 4 * counts, words)

    def write_records(self, slots: NDArray[np.uint64], records: NDArray[Any]) -> None:
        """Writes one record (dtype RECORD) a slot and clears its cancel. The slots are empty and the caller's."""
        self.cancel(slots, np.zeros(len(slots), np.uint32))
        self._region.scatter(self._records_at + RECORD.itemsize * slots, _all(RECORD.itemsize, slots), records)

    def publish(
        self, slots: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Swaps in the slot words of a burst, in order, then rings the doorbell once.

        Answers which slots were published. One that was not no longer belongs to this front end: its
        lease has ended and another one holds it.
        """
        published = self._swap(slots, expected, desired)
        self.submitted += len(slots)
        self._region.write(self._doorbell_at, self.submitted.to_bytes(8, "little"))
        return published

    # --- afterwards ---

    def cancel(self, slots: NDArray[np.uint64], generations: NDArray[np.uint32]) -> None:
        """Asks for the end of the requests with these generations; a later request in the slot is not meant."""
        self._slots_inside(slots)
        self._region.scatter(self._cancels_at + 4 * slots, _all(4, slots), generations)

    def release(
        self, slots: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Makes completed slots empty, when nothing of them is needed any more. Answers like publish."""
        return self._swap(slots, expected, desired)

    def close(self) -> None:
        self._region.close()

    def _swap(
        self, slots: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        self._slots_inside(slots)
        found = self._region.cas_many(self._words_at + 8 * slots, expected, desired)
        return np.equal(found, expected)

    def _slots_inside(self, slots: NDArray[np.uint64]) -> None:
        self._inside("slots", slots, _all(1, slots), self.share.slot_begin, self.share.slot_count)

    def _inside(
        self, what: str, begins: NDArray[np.uint64], counts: NDArray[np.uint64], begin: int, count: int
    ) -> None:
        if len(begins) and (begins.min() < begin or (begins + counts).max() > begin + count):
            raise OutOfBounds(f"front end {self.share.front_end} holds [{begin}, {begin + count}) of the {what} only")


def _all(size: int, slots: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.full(len(slots), size, np.uint64)
