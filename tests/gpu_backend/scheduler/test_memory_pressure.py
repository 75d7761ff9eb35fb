"""When KV pages run out: who is evicted, when it is back, and that it goes on as if nothing had happened."""

from typing import Any

from services.fabric._ring import Finish, SlotState
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.world import World


def world(**changes: Any) -> World:
    values: dict[str, Any] = {"lanes": 4, "step_tokens": 256, "pages": 4, **changes}
    return World(SchedulerSettings(**values))


def until_eviction(w: World) -> None:
    while w.native.counters()["preemptions"] == 0:
        w.go()


def test_the_request_with_the_least_computed_work_is_evicted() -> None:
    w = world(pages=3)
    small = w.submit(50, 30)
    large = w.submit(100, 60)  # two pages, and a third at the 129th token
    until_eviction(w)
    assert w.state(small.slot) == SlotState.DECODE_PAUSED
    assert w.state(large.slot) == SlotState.DECODE_PROCESSING
    w.finish()
    assert (small.finish, large.finish) == (Finish.LENGTH, Finish.LENGTH)
    assert (small.report["preemptions"], large.report["preemptions"]) == (1, 0)
    assert small.tokens == small.expected


def test_an_evicted_request_is_back_before_later_arrivals() -> None:
    w = world(pages=3, lanes=2)
    w.submit(100, 60)
    evicted = w.submit(50, 30)
    w.go(3)
    later = w.submit(5, 5)
    until_eviction(w)
    begin = len(w.steps)
    w.finish()
    order = list(dict.fromkeys(slot for step in w.steps[begin:] for slot in step.slots))
    assert order.index(evicted.slot) < order.index(later.slot)
    assert evicted.tokens == evicted.expected


def test_an_evicted_request_computes_prompt_and_generated_tokens_again_in_one_go() -> None:
    w = world(pages=3)
    small = w.submit(50, 60)
    w.submit(100, 60)
    until_eviction(w)
    had = w.word(small.slot)[3]
    begin = len(w.steps)
    w.finish()
    back = next(step for step in w.steps[begin:] if small.slot in step.slots)
    assert back.counts[back.slots.index(small.slot)] == 50 + had


def test_a_cancel_reaches_an_evicted_request() -> None:
    w = world(pages=3)
    small = w.submit(50, 30)
    w.submit(100, 60)
    until_eviction(w)
    w.cancel(small)
    w.turn()
    w.collect()
    assert small.finish == Finish.CANCELLED
    assert w.native.counters()["free_lanes"] == 3


def test_everything_ends_when_all_want_all_pages() -> None:
    w = world(pages=8, lanes=8)
    requests = [w.submit(20 + 13 * i, 250, seed=i) for i in range(8)]
    w.finish(20_000)
    assert [r.finish for r in requests] == [Finish.LENGTH] * 8
    assert w.native.counters()["preemptions"] > 0
    assert w.idle


def test_the_greatest_is_never_evicted() -> None:
    w = world(pages=8, lanes=8)
    for i in range(8):
        w.submit(30, 250, seed=i)
    computed: dict[int, int] = {}
    while w.live:
        states = {slot: w.word(slot) for slot in w.live}
        computed = {slot: word[3] for slot, word in states.items() if word[0] == SlotState.DECODE_PROCESSING}
        w.go()
        if len(computed) > 1 and len(set(computed.values())) > 1:
            greatest = max(computed, key=lambda slot: computed[slot])
            if greatest in w.live and w.flying is not None:
                assert greatest in w.steps[-1].slots or w.steps[-1].kind == 1
    assert w.idle
