"""Continuous batching: who is computed when, and who must wait (B4, B6, B8)."""

import pytest

from services.fabric._ring import Finish, SlotState
from services.gpu_backend._scheduler import Command, Turn
from services.gpu_backend.engine import StepKind
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.world import World

P, D = StepKind.PREFILL, StepKind.DECODE


def world(launch_window: int = 0, **changes: object) -> World:
    values: dict[str, object] = {"lanes": 4, "step_tokens": 256, "pages": 64, **changes}
    return World(SchedulerSettings(**values), front_ends=2, launch_window=launch_window)  # type: ignore[arg-type]


def kinds(w: World) -> list[StepKind]:
    return [step.kind for step in w.steps]


def test_a_prompt_enters_within_one_decode_step_and_the_others_pause_meanwhile() -> None:
    w = world()
    first = w.submit(70, 50)
    w.go(5)
    assert w.flying is not None
    assert w.steps[-1].kind == D
    second = w.submit(10, 50)
    w.turn()  # the scan is hidden behind the decode in flight
    assert w.state(second.slot) == SlotState.PREFILL_PROCESSING
    w.go()
    assert w.steps[-1].kind == P
    assert list(w.steps[-1].slots) == [second.slot]
    assert w.state(first.slot) == SlotState.DECODE_PAUSED
    w.go()
    assert list(w.steps[-1].slots) == [first.slot, second.slot]
    assert w.state(first.slot) == w.state(second.slot) == SlotState.DECODE_PROCESSING


def test_the_lane_of_a_request_that_ends_with_this_step_is_free_for_the_next() -> None:
    w = world(lanes=1)
    first, second = w.submit(5, 3), w.submit(5, 3)
    w.finish()
    assert [step.slots for step in w.steps] == [(first.slot,)] * 3 + [(second.slot,)] * 3


def test_decodes_get_a_step_between_two_chunks_of_a_prompt() -> None:
    w = world(prefill_chunk=64)
    running = w.submit(5, 60)
    w.go(3)
    long = w.submit(200, 2)
    begin = len(w.steps)
    w.go(9)
    chunks = [(step.kind, step.counts) for step in w.steps[begin:]]
    assert chunks[:7] == [(D, (1,)), (P, (64,)), (D, (1,)), (P, (64,)), (D, (1,)), (P, (64,)), (D, (1,))]
    assert chunks[7] == (P, (8,))
    w.finish()
    assert [r.report["prefill_chunks"] for r in sorted(w.done, key=lambda r: r.slot)] == [1, 4]
    assert len(running.tokens) == 60
    assert len(long.tokens) == 2


def test_chunks_of_one_prompt_follow_each_other_where_so_set() -> None:
    w = world(prefill_chunk=64, decode_between_chunks=False)
    w.submit(5, 60)
    w.go(3)
    w.submit(200, 2)
    begin = len(w.steps)
    w.go(7)
    assert kinds(w)[begin : begin + 6] == [D, P, P, P, P, D]


def test_whole_prompts_share_a_step_while_they_fit() -> None:
    w = world()
    requests = [w.submit(100, 2) for _ in range(3)]
    w.finish()
    assert w.steps[0].counts == (100, 100)  # a third would be cut
    assert w.steps[0].slots == tuple(r.slot for r in requests[:2])


def test_a_prompt_longer_than_a_step_is_cut_in_any_mode() -> None:
    w = world(step_tokens=128)
    w.submit(300, 2)
    w.finish()
    assert [step.counts for step in w.steps] == [(128,), (128,), (44,), (1,)]


def test_prefill_waits_until_the_window_holds_it_and_the_resumed_decode() -> None:
    w = world(launch_window=3)
    w.submit(5, 20)
    w.go(3)  # a prefill and a decode; one launch is left
    w.submit(5, 20)
    w.turn()
    w.go(1)
    assert kinds(w) == [P, D, D]
    w.land()
    assert w.turn() == Turn.RELAUNCH
    w.go(2)
    assert kinds(w) == [P, D, D, P, D]
    assert w.native.counters()["relaunches"] == 1


def test_the_smallest_captured_shape_that_holds_the_step() -> None:
    w = world(decode_graphs=(1, 4), prefill_graphs=(16, 64, 256))
    for count in (3, 60, 1):
        w.submit(count, 2)
        w.go(2)
    w.finish()
    sizes = [(step.kind, step.graph_size) for step in w.steps]
    assert {size for kind, size in sizes if kind == P} == {16, 64}
    assert {size for kind, size in sizes if kind == D} <= {1, 4}


def test_first_come_first_served_within_a_front_end_and_between_them() -> None:
    w = world(lanes=1)
    early = [w.submit(5, 2, front_end=1) for _ in range(2)]
    w.turn()
    late = [w.submit(5, 2, front_end=0) for _ in range(2)]
    w.finish()
    order = list(dict.fromkeys(slot for step in w.steps for slot in step.slots))
    assert order == [r.slot for r in [*early, *late]]


def test_claims_follow_the_records_sequence_not_the_slots() -> None:
    w = world(lanes=1)
    requests = [w.submit(5, 2) for _ in range(3)]
    for request, sequence in zip(requests, (7, 0xFFFFFFFF, 2), strict=True):  # it wraps round
        w.records[request.slot]["sequence"] = sequence
    w.finish()
    order = list(dict.fromkeys(slot for step in w.steps for slot in step.slots))
    assert order == [requests[1].slot, requests[2].slot, requests[0].slot]


def test_a_request_that_can_never_fit_is_refused_at_once_and_the_queue_moves_on() -> None:
    w = world(pages=3)
    large = w.submit(100, 94)  # the 193rd token's KV is needed
    fits = w.submit(100, 93)
    w.go(2)
    assert large.finish == Finish.TOO_LARGE
    w.finish()
    assert fits.finish == Finish.LENGTH


@pytest.mark.parametrize("running", [0, 3])
def test_draining_refuses_what_comes_and_finishes_what_runs(running: int) -> None:
    w = world()
    requests = [w.submit(5, 10) for _ in range(running)]
    w.go(2)
    w.native.command(Command.DRAIN)
    w.turn()
    refused = w.submit(5, 10)
    w.finish()
    assert refused.finish == Finish.DRAINING
    assert [r.finish for r in requests] == [Finish.LENGTH] * running


def test_stop_ends_everything_when_the_step_in_flight_has_landed() -> None:
    w = world(lanes=1)
    running, waiting = w.submit(5, 10), w.submit(5, 10)
    w.go(3)
    pending = w.submit(5, 10)
    w.stop()
    assert w.turn() == Turn.FLYING
    w.land()
    assert w.turn() == Turn.STOPPED
    w.collect()
    assert [r.finish for r in (running, waiting, pending)] == [Finish.DRAINING] * 3
    assert w.idle


def test_a_step_that_fails_ends_its_requests_and_no_others() -> None:
    w = world()
    first = w.submit(5, 10)
    w.go(3)
    second = w.submit(5, 10)
    w.go(2)
    assert w.steps[-1].slots == (second.slot,)
    w.land(error=1)
    w.finish()
    assert (first.finish, second.finish) == (Finish.LENGTH, Finish.ENGINE_ERROR)


def test_a_token_that_the_model_lacks_is_an_engine_error() -> None:
    w = world()
    request = w.submit(5, 10)
    w.go(1)
    w.go(1)
    assert w.flying is not None
    w.engine.step = lambda view: view.out_tokens.fill(0xFFFFFFFF)  # type: ignore[method-assign]
    w.finish()
    assert request.finish == Finish.ENGINE_ERROR


def test_an_overdue_step_fails_the_engine_and_everything_waiting() -> None:
    w = world(lanes=1, watchdog_s=5.0)
    requests = [w.submit(5, 10) for _ in range(2)]
    w.go(3)
    w.turn(4.0)
    assert w.state(requests[0].slot) == SlotState.DECODE_PROCESSING
    w.turn(2.0)
    later = w.submit(5, 10)
    w.turn()
    w.collect()
    assert [r.finish for r in [*requests, later]] == [Finish.ENGINE_ERROR] * 3
    assert w.idle
    w.land()  # late: there is nothing to complete any more
    assert w.turn() == Turn.IDLE
    w.native.check()


def test_a_doorbell_that_lies_is_looked_after_ever_more_rarely() -> None:
    w = world()
    w.header["doorbells"][0] = 1 << 40
    for _ in range(10_000):
        w.turn(1e-3)
    assert w.native.counters()["scans"] < 200
    request = w.submit(5, 2)
    w.turn()
    assert w.state(request.slot) == SlotState.PREFILL_PROCESSING
