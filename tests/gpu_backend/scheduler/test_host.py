"""The scheduler on its thread, with an engine on another: serving, failing, stopping, idling."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from services.fabric import _ring
from services.fabric._ring import EngineState, Finish, SlotState
from services.fabric.ring import RingGeometry, RingOwner
from services.fabric.ring.layout import HEADER, RECORD
from services.gpu_backend.engine import StepView
from services.gpu_backend.engines.synthetic import SyntheticEngine, SyntheticSettings
from services.gpu_backend.scheduler.host import HostScheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings, graph_sizes
from tests.gpu_backend.scheduler.world import HeapRegion
from tests.waiting import wait_until

SLOTS, ROOM, VOCABULARY, CONTEXT, WAIT_S = 64, 256, 50, 512, 30.0
SHAPE = SchedulerSettings(lanes=8, step_tokens=256, pages=64)


class FrontEnd:
    """Submits to the first front end's slots and waits for words; plain stores, one writer a word."""

    def __init__(self, ring: RingOwner) -> None:
        at, buffer = ring.geometry.fields(), ring.buffer
        self.header: Any = buffer[: HEADER.itemsize].view(HEADER)[0]
        self.ring, self.words_at = ring, at["words_offset"]
        self.records: Any = buffer[at["records_offset"] :][: RECORD.itemsize * SLOTS].view(RECORD)
        self.tokens = buffer[at["token_offset"] :][: 4 * SLOTS * ROOM].view(np.uint32)

    def word(self, slot: int) -> tuple[SlotState, Finish, int, int]:
        return _ring.unpack_word(_ring.load_acquire_u64(self.ring.buffer, self.words_at + 8 * slot))

    def submit(self, slot: int, most: int) -> None:
        generation = _ring.next_generation(self.word(slot)[2])
        record = self.records[slot : slot + 1]
        record[:] = 0
        record["generation"], record["sequence"] = generation, slot
        record["prompt_begin"], record["prompt_count"] = slot * ROOM, 10
        record["token_begin"], record["max_tokens"], record["top_p"] = slot * ROOM, most, 1
        pending = _ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, generation, 0)
        _ring.store_release_u64(self.ring.buffer, self.words_at + 8 * slot, pending)
        self.header["doorbells"][0] += 1

    def finish(self, slot: int) -> Finish:
        wait_until(lambda: self.word(slot)[0] == SlotState.DECODE_COMPLETED)
        return self.word(slot)[1]


class BreakableEngine(SyntheticEngine):
    """A synthetic engine that fails, or stands still, when told to."""

    def __init__(self) -> None:
        super().__init__(SyntheticSettings((1, 2, 3), VOCABULARY, CONTEXT, decode_rate=1e6, prefill_rate=1e9))
        self.broken = False
        self.moves = threading.Event()
        self.moves.set()

    def step(self, view: StepView) -> None:
        self.moves.wait(WAIT_S)
        if self.broken:
            raise RuntimeError("broken on purpose")
        super().step(view)


@contextmanager
def serving(settings: SchedulerSettings = SHAPE) -> Iterator[tuple[FrontEnd, HostScheduler, BreakableEngine]]:
    geometry = RingGeometry(SLOTS, SLOTS * ROOM, SLOTS * ROOM)
    region: Any = HeapRegion(geometry.size_bytes)
    ring = RingOwner(region, geometry, epoch=1, max_context=CONTEXT, vocab_size=VOCABULARY, page_count=settings.pages)
    ring.grant(ring.share(0))
    engine = BreakableEngine()
    engine.allocate(settings.pages, settings.lanes, settings.step_tokens)
    scheduler = HostScheduler(ring.buffer, engine, settings, max_context=CONTEXT)
    scheduler.start()
    try:
        yield FrontEnd(ring), scheduler, engine
    finally:
        engine.moves.set()
        scheduler.stop(WAIT_S)


def test_requests_are_served_and_leave_nothing_behind() -> None:
    with serving() as (front_end, scheduler, _):
        for slot in range(8):
            front_end.submit(slot, 50)
        assert [front_end.finish(slot) for slot in range(8)] == [Finish.LENGTH] * 8
        positions = (10 + np.arange(50)) % 3
        assert front_end.tokens[:50].tolist() == np.array([1, 2, 3])[positions].tolist()
        wait_until(lambda: scheduler.unfinished == 0)
        scheduler.check()
        counters = scheduler.counters()
        assert counters["generated_tokens"] == 400
        assert (counters["free_pages"], counters["free_lanes"]) == (SHAPE.pages, SHAPE.lanes)


def test_an_engine_that_raises_ends_its_requests_and_serves_the_next(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as (front_end, _, engine):
        engine.broken = True
        front_end.submit(0, 50)
        assert front_end.finish(0) == Finish.ENGINE_ERROR
        engine.broken = False
        front_end.submit(1, 5)
        assert front_end.finish(1) == Finish.LENGTH
    assert "broken on purpose" in caplog.text


def test_an_engine_that_stands_still_is_given_up() -> None:
    settings = SchedulerSettings(lanes=8, step_tokens=256, pages=64, watchdog_s=0.05)
    with serving(settings) as (front_end, scheduler, engine):
        engine.moves.clear()
        front_end.submit(0, 50)
        assert front_end.finish(0) == Finish.ENGINE_ERROR
        front_end.submit(1, 50)
        assert front_end.finish(1) == Finish.ENGINE_ERROR
        assert front_end.header["engine_state"] == EngineState.FAILED
        scheduler.check()


def test_stop_waits_for_the_step_and_ends_the_rest() -> None:
    with serving() as (front_end, scheduler, engine):
        engine.moves.clear()
        for slot in range(8):
            front_end.submit(slot, 200)
        wait_until(lambda: scheduler.counters()["prefill_launches"] == 1)
        with pytest.raises(TimeoutError, match="has not returned"):
            scheduler.stop(0.01)
        engine.moves.set()
        scheduler.stop(WAIT_S)
        assert {front_end.word(slot)[1] for slot in range(8)} == {Finish.DRAINING}
        assert front_end.header["engine_state"] == EngineState.STOPPED


def test_draining_finishes_what_was_claimed() -> None:
    with serving() as (front_end, scheduler, _):
        front_end.submit(0, 100)
        wait_until(lambda: scheduler.counters()["claims"] == 1)
        scheduler.drain()
        wait_until(lambda: int(front_end.header["engine_state"]) == EngineState.DRAINING)
        front_end.submit(1, 100)
        assert [front_end.finish(slot) for slot in (0, 1)] == [Finish.LENGTH, Finish.DRAINING]


def test_the_heartbeat_goes_on_while_idle_and_turns_are_few() -> None:
    with serving() as (front_end, scheduler, _):
        wait_until(lambda: int(front_end.header["engine_state"]) == EngineState.SERVING)
        before = int(front_end.header["heartbeat"])
        wait_until(lambda: int(front_end.header["heartbeat"]) > before + 3)
        scheduler.check()


def test_a_ring_of_another_geometry_is_refused() -> None:
    geometry = RingGeometry(SLOTS, SLOTS * ROOM, SLOTS * ROOM)
    region: Any = HeapRegion(geometry.size_bytes)
    ring = RingOwner(region, geometry, epoch=1, max_context=CONTEXT, vocab_size=7, page_count=SHAPE.pages)
    with pytest.raises(ValueError, match="vocab_size"):
        HostScheduler(ring.buffer, BreakableEngine(), SHAPE, max_context=CONTEXT)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step_tokens": 4}, "step_tokens"),
        ({"pages": 0}, "pages"),
        ({"order_capacity": 24}, "power of two"),
        ({"prefill_chunk": -1}, "negative"),
    ],
)
def test_settings_that_cannot_be_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SchedulerSettings(**{"lanes": 8, "step_tokens": 256, "pages": 64, **wrong})


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 64, 100])
def test_graph_sizes_ascend_to_the_largest(largest: int) -> None:
    sizes = graph_sizes(largest)
    assert sizes[-1] == largest
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] == 1
