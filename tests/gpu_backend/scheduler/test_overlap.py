"""Steps begun before they are asked for: the same tokens, whoever comes, goes, stops or is cancelled meanwhile."""

import random
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric._ring import Finish, SlotState
from services.fabric.ring import RingGeometry, RingOwner
from services.fabric.ring.layout import RECORD, header_field_offset
from services.gpu_backend.engine import STEP_SEQUENCE, EngineError, ModelGeometry, StepKind, StepView
from services.gpu_backend.scheduler.overlap import OverlapScheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.toy import VOCABULARY, ToyEngine, expected_tokens, prompt_tokens
from tests.gpu_backend.scheduler.world import HeapRegion

SLOTS, ROOM, CONTEXT, WAIT_S = 64, 512, 512, 60.0
BELL_AT = header_field_offset("doorbells")


@dataclass
class Flight:
    view: StepView
    tokens: NDArray[np.uint32]
    sources: NDArray[np.uint32] | None
    done: bool = False


class QueueingToy(ToyEngine):
    """The toy as a GPU would do it: steps lie in a queue with copies of their inputs, and are computed in order."""

    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self.geometry = ModelGeometry(1, 1, 1, 1, VOCABULARY, CONTEXT, "uint32", "toy")
        self._queue: deque[Flight] = deque()
        self._last = np.zeros(SLOTS, np.uint32)

    def begin(self, view: StepView) -> Flight:
        return self._add(Flight(_copy(view), np.zeros(SLOTS, np.uint32), None))

    def begin_ahead(self, foreseen: NDArray[Any], block_tables: NDArray[np.uint32]) -> Flight:
        count = len(foreseen)
        sequences = np.zeros(count + 1, STEP_SEQUENCE)
        sequences[:count] = foreseen["sequence"]
        out = np.zeros(SLOTS, np.uint32)
        view = StepView(StepKind.DECODE, count, count, sequences, foreseen["token"].copy(), block_tables.copy(), out)
        return self._add(Flight(view, out, foreseen["source"].copy()))

    def _add(self, flight: Flight) -> Flight:
        self._queue.append(flight)
        assert len(self._queue) <= 3
        return flight

    def tokens_of(self, flight: Flight) -> NDArray[np.uint32]:
        while not flight.done:
            self._compute(self._queue.popleft())
        return flight.view.out_tokens

    def _compute(self, flight: Flight) -> None:
        if flight.sources is not None:
            known = flight.sources == 0xFFFFFFFF
            flight.view.tokens[:] = np.where(known, flight.view.tokens, self._last[np.where(known, 0, flight.sources)])
        self.step(flight.view)
        self._last, flight.done = flight.view.out_tokens, True


def _copy(view: StepView) -> StepView:
    return StepView(
        view.kind, view.sequence_count, view.token_count, view.sequences.copy(), view.tokens.copy(),
        view.block_tables.copy(), np.zeros(SLOTS, np.uint32),
    )  # fmt: skip


class Serving:
    """A front end with one slot range, and an overlapping scheduler behind it."""

    def __init__(self, settings: SchedulerSettings, engine: Any) -> None:
        geometry = RingGeometry(SLOTS * 8, SLOTS * ROOM * 8, SLOTS * ROOM * 8)
        region: Any = HeapRegion(geometry.size_bytes)
        self.ring = RingOwner(
            region, geometry, epoch=1, max_context=CONTEXT, vocab_size=VOCABULARY, page_count=settings.pages
        )
        self.ring.grant(self.ring.share(0))
        self.scheduler = OverlapScheduler(self.ring.buffer, engine, settings, max_context=CONTEXT)
        at, buffer = geometry.fields(), self.ring.buffer
        self._words_at = at["words_offset"]
        self._records: Any = buffer[at["records_offset"] :][: RECORD.itemsize * SLOTS].view(RECORD)
        self._prompt = buffer[at["prompt_offset"] :][: 4 * SLOTS * ROOM].view(np.uint32)
        self._tokens = buffer[at["token_offset"] :][: 4 * SLOTS * ROOM].view(np.uint32)
        self._cancels = buffer[at["cancels_offset"] :][: 4 * SLOTS].view(np.uint32)
        self._bell = 0
        self._expected: dict[int, list[int]] = {}

    def word(self, slot: int) -> tuple[SlotState, Finish, int, int]:
        return _ring.unpack_word(_ring.load_acquire_u64(self.ring.buffer, self._words_at + 8 * slot))

    def submit(
        self, slot: int, prompt_count: int, most: int, *, seed: int, temperature: float, stops: list[int]
    ) -> None:
        generation = _ring.next_generation(self.word(slot)[2])
        prompt = prompt_tokens(seed, prompt_count)
        self._expected[slot] = expected_tokens(prompt, seed, most, stops)
        self._prompt[slot * ROOM : slot * ROOM + prompt_count] = prompt
        record = self._records[slot : slot + 1]
        record[:] = 0
        record["generation"], record["sequence"], record["seed"] = generation, self._bell + 1, seed
        record["prompt_begin"], record["prompt_count"] = slot * ROOM, prompt_count
        record["token_begin"], record["max_tokens"] = slot * ROOM, most
        record["temperature"], record["top_p"] = temperature, 1
        record["stop_count"], record["stop_ids"][0, : len(stops)] = len(stops), stops
        pending = _ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, generation, 0)
        _ring.store_release_u64(self.ring.buffer, self._words_at + 8 * slot, pending)
        self._bell += 1
        _ring.store_release_u64(self.ring.buffer, BELL_AT, self._bell)

    def cancel(self, slot: int) -> None:
        self._cancels[slot] = self.word(slot)[2]

    def taken(self, slot: int) -> bool:
        """Whether the slot's request has ended; then what came is checked, and the slot is free again."""
        state, finish, generation, count = self.word(slot)
        if state != SlotState.DECODE_COMPLETED:
            return False
        expected = self._expected.pop(slot)
        assert self._tokens[slot * ROOM : slot * ROOM + count].tolist() == expected[:count]
        assert finish in (Finish.STOP, Finish.LENGTH, Finish.CANCELLED)
        assert finish == Finish.CANCELLED or count == len(expected)
        empty = _ring.slot_word(SlotState.EMPTY, Finish.NONE, generation, 0)
        _ring.store_release_u64(self.ring.buffer, self._words_at + 8 * slot, empty)
        return True


@pytest.mark.parametrize("pages", [200, 12], ids=["roomy", "tight"])
@pytest.mark.parametrize(("chunk", "mixed"), [(0, 0), (40, 0), (0, 50)], ids=["whole", "chunks", "mixed"])
def test_tokens_are_right_whatever_comes_between(pages: int, chunk: int, mixed: int) -> None:
    settings = SchedulerSettings(lanes=6, step_tokens=256, pages=pages, prefill_chunk=chunk, mixed_tokens=mixed)
    serving = Serving(settings, QueueingToy(pages))
    dice = random.Random(pages + chunk)
    serving.scheduler.start()
    try:
        left, busy, give_up = 150, set[int](), time.monotonic() + WAIT_S
        while left or busy:
            assert time.monotonic() < give_up, serving.scheduler.counters()
            busy -= {slot for slot in busy if serving.taken(slot)}
            if left and len(busy) < 12:
                slot = next(slot for slot in range(SLOTS) if slot not in busy)
                serving.submit(
                    slot, dice.randrange(1, 200), dice.randrange(1, 150), seed=left,
                    temperature=dice.choice([0.0, 0.7]), stops=dice.sample(range(VOCABULARY), 2),
                )  # fmt: skip
                busy.add(slot)
                left -= 1
            elif busy and dice.random() < 0.001:
                serving.cancel(dice.choice(sorted(busy)))
            time.sleep(1e-4)
        serving.scheduler.check()
        counters = serving.scheduler.counters()
        assert counters["free_pages"] == pages
        assert serving.scheduler.overlapped > 100
        assert (pages == 200) or counters["preemptions"] > 0
    finally:
        serving.scheduler.stop(WAIT_S)


def test_a_lone_request_overlaps_all_its_steps_but_the_first() -> None:
    serving = Serving(SchedulerSettings(lanes=2, step_tokens=64, pages=16), QueueingToy(16))
    serving.scheduler.start()
    try:
        serving.submit(0, 10, 50, seed=3, temperature=0.0, stops=[])
        give_up = time.monotonic() + WAIT_S
        while not serving.taken(0):
            assert time.monotonic() < give_up
            time.sleep(1e-3)
        assert serving.scheduler.overlapped == 49
    finally:
        serving.scheduler.stop(WAIT_S)


class FailingToy(QueueingToy):
    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self.fails = threading.Event()

    def tokens_of(self, flight: Flight) -> NDArray[np.uint32]:
        if self.fails.is_set():
            self._queue.clear()
            raise EngineError("broken on purpose")
        return super().tokens_of(flight)


def test_a_step_that_fails_ends_its_requests_and_the_next_are_served(caplog: pytest.LogCaptureFixture) -> None:
    engine = FailingToy(16)
    serving = Serving(SchedulerSettings(lanes=2, step_tokens=64, pages=16), engine)
    engine.fails.set()
    serving.scheduler.start()
    try:
        serving.submit(0, 10, 50, seed=3, temperature=0.0, stops=[])
        give_up = time.monotonic() + WAIT_S
        while serving.word(0)[0] != SlotState.DECODE_COMPLETED:
            assert time.monotonic() < give_up
            time.sleep(1e-3)
        assert serving.word(0)[1] == Finish.ENGINE_ERROR
        assert "broken on purpose" in caplog.text
        engine.fails.clear()
        serving.submit(1, 10, 50, seed=4, temperature=0.0, stops=[])
        while not serving.taken(1):
            assert time.monotonic() < give_up
            time.sleep(1e-3)
    finally:
        serving.scheduler.stop(WAIT_S)


def test_a_kv_agent_is_refused() -> None:
    with pytest.raises(ValueError, match="kv_orders"):
        Serving(SchedulerSettings(lanes=2, step_tokens=64, pages=16, kv_orders=True), QueueingToy(16))
