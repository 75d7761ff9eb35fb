"""How requests end: stop ids, length, cancels in every phase, records that don't hold, leases that end."""

from typing import Any

import numpy as np
import pytest

from services.fabric import _ring
from services.fabric._ring import Finish, LeaseState, RecordFlags, SlotState
from services.gpu_backend._scheduler import uniform
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.toy import VOCABULARY, expected_tokens, prompt_tokens
from tests.gpu_backend.scheduler.world import MAX_CONTEXT, PROMPT_ROOM, TOKEN_ROOM, World


def world(**changes: Any) -> World:
    values: dict[str, Any] = {"lanes": 2, "step_tokens": 256, "pages": 64, **changes}
    return World(SchedulerSettings(**values), front_ends=2)


def test_the_stop_token_is_the_last_one_written_and_counted() -> None:
    w = world()
    stop = expected_tokens(prompt_tokens(3, 20), 3, 10, ())[4]
    request = w.submit(20, 10, seed=3, stop_ids=(VOCABULARY, stop))
    w.finish()
    assert request.finish == Finish.STOP
    assert request.tokens[-1] == stop
    assert len(request.tokens) <= 5


def test_ignore_eos_ignores_the_first_stop_id_only() -> None:
    w = world()
    tokens = expected_tokens(prompt_tokens(3, 20), 3, 10, ())
    flags = {"flags": RecordFlags.IGNORE_EOS}
    ignoring = w.submit(20, 10, seed=3, stop_ids=(tokens[2],), spoil=flags)
    stopping = w.submit(20, 10, seed=3, stop_ids=(VOCABULARY, tokens[2]), spoil=flags)
    w.finish()
    assert (ignoring.finish, len(ignoring.tokens)) == (Finish.LENGTH, 10)
    assert stopping.finish == Finish.STOP


def test_the_report_tells_the_times_in_order() -> None:
    w = world(lanes=1)
    w.submit(20, 3)
    waits = w.submit(20, 3)
    w.finish()
    report = waits.report
    times = [int(report[name]) for name in ("claimed_ns", "prefill_ns", "first_token_ns", "finished_ns")]
    assert times == sorted(set(times))
    assert report["preemptions"] == 0
    assert report["prefill_chunks"] == 1


# --- cancels ---


def test_a_cancel_is_honoured_within_a_step_while_running_and_while_waiting() -> None:
    w = world(lanes=1)
    running, waiting = w.submit(5, 50), w.submit(5, 50)
    w.go(4)
    w.cancel(waiting)
    w.turn()
    w.collect()
    assert waiting.finish == Finish.CANCELLED
    w.cancel(running)
    w.turn()  # noted while its step is in flight
    w.go()
    assert running.finish == Finish.CANCELLED
    assert running.tokens == running.expected[: len(running.tokens)]
    assert w.idle


def test_a_cancel_stops_a_long_prefill_within_a_chunk() -> None:
    w = world(prefill_chunk=32)
    long = w.submit(300, 5)
    w.go(3)
    w.cancel(long)
    w.turn()
    w.go()
    assert long.finish == Finish.CANCELLED
    assert len(w.steps) == 3 - 1
    assert w.idle


def test_a_cancel_before_the_claim() -> None:
    w = world()
    request = w.submit(5, 5)
    w.cancel(request)
    w.go(2)
    w.collect()
    assert request.finish == Finish.CANCELLED
    assert request.tokens in ([], request.expected[:1])


def test_a_late_cancel_does_not_reach_the_slots_next_request() -> None:
    w = world()
    first = w.submit(5, 2)
    w.finish()
    second = w.submit(5, 4)
    assert second.slot == first.slot
    w.cancels[first.slot] = first.generation
    w.finish()
    assert second.finish == Finish.LENGTH


# --- records ---

LEASE_PROMPTS, LEASE_TOKENS = 8 * PROMPT_ROOM, 8 * TOKEN_ROOM


@pytest.mark.parametrize(
    "spoilt",
    [
        {"generation": 77},
        {"prompt_count": 0},
        {"prompt_count": LEASE_PROMPTS + 1},
        {"prompt_begin": LEASE_PROMPTS - 19},
        {"prompt_begin": 0xFFFFFFFF},
        {"prompt_count": 0xFFFFFFFF},
        {"max_tokens": 0},
        {"max_tokens": MAX_CONTEXT - 19},
        {"max_tokens": 0xFFFFFFFF},
        {"token_begin": LEASE_TOKENS - 3},
        {"token_begin": 0xFFFFFFFE},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": -0.5},
        {"temperature": 101.0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": float("nan")},
        {"stop_count": 9},
        {"flags": 4},
        {"cached_tokens": 1},
        {"cached_tokens": 64},
    ],
    ids=str,
)
def test_a_record_that_does_not_hold_together_is_refused(spoilt: dict[str, Any]) -> None:
    w = world()
    bad = w.submit(20, 4, spoil=spoilt)
    good = w.submit(20, 4)
    w.finish()
    assert bad.finish == Finish.BAD_RECORD
    assert bad.tokens == []
    assert good.finish == Finish.LENGTH
    assert len(w.steps) == 4


def test_ranges_of_another_front_ends_lease_are_refused() -> None:
    w = world()
    other = w.shares[1]
    prompt = w.submit(20, 4, spoil={"prompt_begin": other.prompt_begin})
    tokens = w.submit(20, 4, spoil={"token_begin": other.token_begin})
    w.finish()
    assert (prompt.finish, tokens.finish) == (Finish.BAD_RECORD, Finish.BAD_RECORD)


def test_a_prompt_with_an_id_that_the_model_lacks_is_refused() -> None:
    w = world()
    request = w.submit(20, 4)
    w.prompt[request.slot * PROMPT_ROOM + 19] = VOCABULARY
    w.finish()
    assert request.finish == Finish.BAD_RECORD


def test_ids_spoilt_after_the_claim_cost_nobody_a_fault() -> None:
    w = world(prefill_chunk=8)
    request = w.submit(20, 4)
    w.turn()
    w.prompt[request.slot * PROMPT_ROOM : request.slot * PROMPT_ROOM + 20] = 0xFFFFFFFF
    request.whole = False
    w.finish()
    assert request.finish == Finish.LENGTH


def test_a_slot_that_waits_for_kv_from_nowhere_is_refused() -> None:
    w = world()
    request = w.submit(20, 4)
    w.words[request.slot] = _ring.slot_word(SlotState.KV_PENDING, Finish.NONE, request.generation, 0)
    w.turn()
    w.collect()
    assert request.finish == Finish.BAD_RECORD


# --- leases ---


def test_an_ended_lease_is_drained_emptied_and_free_again() -> None:
    w = world(lanes=1)
    w.submit(5, 50)
    w.submit(5, 50)
    kept = w.submit(5, 3, front_end=1)
    w.go(3)
    w.submit(5, 50)  # pending, not seen yet
    w.ring.end(0)
    w.live = {kept.slot: kept}
    w.finish()
    assert w.ring.lease_state(0) == LeaseState.FREE
    assert not np.any(w.words[: w.shares[0].slot_count] & np.uint64(15))
    assert kept.finish == Finish.LENGTH
    w.ring.grant(w.shares[0])
    again = w.submit(5, 3)
    w.finish()
    assert again.finish == Finish.LENGTH
    assert w.idle


# --- sampling ---


def reference_uniform(seed: int, index: int) -> float:
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def scramble(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    return (scramble((scramble((seed + golden) & mask) + golden * (index + 1)) & mask) >> 40) / 2**24


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_random_numbers_are_a_known_function_of_seed_and_index(seed: int) -> None:
    draws = [uniform(seed, index) for index in range(2000)]
    assert draws[:50] == [reference_uniform(seed, index) for index in range(50)]
    assert all(0 <= draw < 1 for draw in draws)
    assert 0.45 < np.mean(draws) < 0.55
    assert len(set(draws)) > 1990
