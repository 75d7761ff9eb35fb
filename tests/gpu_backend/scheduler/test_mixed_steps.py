"""Steps in which prompts and running decodes share: who is in them, how large they are, and the same tokens as ever."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.fabric._ring import Finish, SlotState
from services.gpu_backend.engine import StepKind
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.world import Request, World

P, D = StepKind.PREFILL, StepKind.DECODE


def world(launch_window: int = 0, **changes: Any) -> World:
    values: dict[str, Any] = {"lanes": 4, "step_tokens": 256, "pages": 64, "mixed_tokens": 64, **changes}
    return World(SchedulerSettings(**values), front_ends=8, launch_window=launch_window)


def test_a_prompt_comes_in_beside_the_decodes_which_go_on() -> None:
    w = world()
    first = w.submit(70, 50)
    w.go(5)
    second = w.submit(10, 50)
    w.go()  # the scan is hidden behind the decode in flight
    w.go()
    assert (w.steps[-1].kind, w.steps[-1].slots, w.steps[-1].counts) == (P, (second.slot, first.slot), (10, 1))
    assert w.state(first.slot) == SlotState.DECODE_PROCESSING
    w.go()
    assert w.steps[-1].kind == D
    assert set(w.steps[-1].slots) == {first.slot, second.slot}
    w.finish()
    counters = w.native.counters()
    assert (counters["pauses"], counters["mixed_launches"], counters["prefill_launches"]) == (0, 1, 2)
    assert counters["prompt_tokens"] == 80
    assert counters["generated_tokens"] == 100


def test_the_decodes_count_among_the_tokens_of_a_mixed_step() -> None:
    w = world(lanes=3)
    for _ in range(2):
        w.submit(5, 60)
    w.go(3)
    w.submit(200, 2)
    begin = len(w.steps)
    w.go(6)
    mixed = [(step.kind, step.counts) for step in w.steps[begin:]]
    assert mixed[1:5] == [(P, (62, 1, 1))] * 3 + [(P, (14, 1, 1))]


def test_alone_a_prompt_is_computed_whole() -> None:
    w = world()
    w.submit(200, 2)
    w.finish()
    assert [step.counts for step in w.steps] == [(200,), (1,)]


def test_a_chunk_is_bounded_in_mixed_steps_too() -> None:
    w = world(prefill_chunk=20)
    w.submit(5, 60)
    w.go(3)
    w.submit(50, 2)
    begin = len(w.steps)
    w.go(4)
    assert [step.counts for step in w.steps[begin + 1 : begin + 4]] == [(20, 1), (20, 1), (10, 1)]


def test_prompts_fill_a_mixed_step_together() -> None:
    w = world()
    w.submit(5, 60)
    w.go(3)
    for _ in range(2):
        w.submit(50, 2)
    begin = len(w.steps)
    w.go(3)
    assert [step.counts for step in w.steps[begin + 1 : begin + 3]] == [(50, 13, 1), (37, 1, 1)]


def test_the_last_launch_of_a_window_may_be_mixed() -> None:
    w = world(launch_window=3)
    w.submit(5, 20)
    w.go(3)  # a prefill and a decode; one launch is left
    w.submit(5, 20)
    w.turn()
    w.go()
    assert [step.kind for step in w.steps] == [P, D, P]


def test_a_mixed_step_that_fails_ends_all_that_are_in_it() -> None:
    w = world()
    first = w.submit(5, 10)
    w.go(3)
    second = w.submit(5, 10)
    w.go(2)
    assert len(w.steps[-1].slots) == 2
    w.land(error=1)
    w.finish()
    assert (first.finish, second.finish) == (Finish.ENGINE_ERROR, Finish.ENGINE_ERROR)
    assert w.idle


def test_a_cancel_of_a_decode_in_a_mixed_step_is_honoured_when_it_lands() -> None:
    w = world()
    first = w.submit(5, 100)
    w.go(3)
    w.submit(200, 2)
    w.go(2)
    assert w.steps[-1].counts == (63, 1)
    w.cancel(first)
    w.turn()
    w.go()
    assert first.finish == Finish.CANCELLED
    assert list(w.steps[-1].counts) == [137]  # nothing runs any more
    w.finish()
    assert w.idle


@pytest.mark.parametrize("tokens", [1, 3, 257])
def test_a_mixed_step_must_hold_all_lanes_and_fit_a_step(tokens: int) -> None:
    with pytest.raises(ValueError, match="mixed_tokens"):
        SchedulerSettings(lanes=4, step_tokens=256, pages=64, mixed_tokens=tokens)


Wish = tuple[int, int, int]
"""Tokens of the prompt and of the answer, and steps until the next request comes."""

wishes = st.lists(st.tuples(st.integers(1, 250), st.integers(1, 60), st.integers(0, 6)), min_size=1, max_size=32)


def serve(w: World, wanted: list[Wish]) -> list[Request]:
    """Every slot is used once, so that the steps tell the requests apart."""
    requests = []
    for number, (prompt, most, steps) in enumerate(wanted):
        requests.append(w.submit(prompt, most, seed=number, front_end=number % 8))
        for _ in range(steps):
            w.land()
            w.turn()
    for _ in range(20_000):
        w.land()
        w.turn()
        if all(w.state(request.slot) == SlotState.DECODE_COMPLETED for request in requests):
            break
    w.collect()
    return requests


@settings(max_examples=60, deadline=None)
@given(wanted=wishes, lanes=st.integers(1, 32), tokens=st.integers(32, 256), chunk=st.sampled_from([0, 1, 17, 64]))
def test_no_decode_ever_waits_and_every_token_is_right(wanted: list[Wish], lanes: int, tokens: int, chunk: int) -> None:
    w = world(lanes=lanes, pages=32 * 5, mixed_tokens=tokens, prefill_chunk=chunk)
    for request in serve(w, wanted):
        assert request.tokens == request.expected
        steps = [number for number, step in enumerate(w.steps) if request.slot in step.slots]
        assert steps[-request.most :] == list(range(steps[-1] - request.most + 1, steps[-1] + 1))
    sampled: set[int] = set()  # who runs, or has ended
    for step in w.steps:
        decodes = [slot for slot in step.slots if slot in sampled]
        assert list(step.slots[len(step.slots) - len(decodes) :]) == decodes
        assert sum(step.counts) <= (tokens if decodes and step.kind == P else 256)
        assert sum(step.counts) - len(decodes) <= (chunk or 256)
        sampled |= step.sampled
    assert w.native.counters()["pauses"] == 0
    assert w.idle


@settings(max_examples=60, deadline=None)
@given(
    wanted=wishes, lanes=st.integers(1, 32), pages=st.integers(5, 20), tokens=st.sampled_from([0, 32, 40, 256]),
    chunk=st.sampled_from([0, 17, 64]), window=st.sampled_from([0, 1, 5]),
)  # fmt: skip
def test_tokens_are_right_when_pages_run_out(
    wanted: list[Wish], lanes: int, pages: int, tokens: int, chunk: int, window: int
) -> None:
    w = world(window, lanes=lanes, pages=pages, mixed_tokens=tokens, prefill_chunk=chunk)
    for request in serve(w, wanted):
        assert (request.finish, request.tokens) == (Finish.LENGTH, request.expected)
    assert w.idle
