"""A request that two engines share, as each engine's scheduler sees it (D3)."""

from typing import Any

import numpy as np
import pytest

from services.fabric import _ring
from services.fabric._ring import Finish, RecordFlags, SlotState
from services.gpu_backend._scheduler import KvOrderKind
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.world import Request, World

LOAD, STORE, END = KvOrderKind.LOAD, KvOrderKind.STORE, KvOrderKind.END
RECEIVE, SEND = KvOrderKind.RECEIVE, KvOrderKind.SEND
TRANSFER = 0xABCD_0000_0001
LENGTHS = (1, 63, 64, 65, 127, 128, 130)


def world(**changes: Any) -> World:
    values: dict[str, Any] = {"lanes": 4, "step_tokens": 256, "pages": 64, "kv_orders": True, **changes}
    return World(SchedulerSettings(**values))


def decoding(w: World, prompt: int = 130, most: int = 20, cached: int = 0, **fields: Any) -> Request:
    """A request whose prompt is prefilled elsewhere."""
    request = w.submit(prompt, most, cached=cached, spoil={"transfer": TRANSFER, **fields})
    request.whole = not fields
    w.words[request.slot] = _ring.slot_word(SlotState.KV_PENDING, Finish.NONE, request.generation, 0)
    w.go()
    return request


def prefilling(w: World, prompt: int = 130, **fields: Any) -> Request:
    """A request that is decoded elsewhere."""
    flags = RecordFlags.HAND_OVER | RecordFlags.NO_PERSIST
    request = w.submit(prompt, 1, spoil={"transfer": TRANSFER, "flags": flags, **fields})
    request.whole = not fields
    return request


def order(w: World, kind: KvOrderKind) -> Any:
    [found] = [o for o in w.orders.take() if int(o["kind"]) == kind]
    return found


def comes(w: World, request: Request) -> None:
    w.orders.answer_load(order(w, RECEIVE), request.expected[0] + 1)
    w.go()


def fills(w: World, request: Request, blocks: int | None = None) -> None:
    asked = order(w, LOAD)
    pages = w.orders.pages_of(asked).tolist()
    assert len(pages) == -(-len(request.prompt) // 64)
    for i, page in enumerate(pages[:blocks]):
        part = request.prompt[64 * i : 64 * (i + 1)]
        w.engine.kv[page, : len(part)] = part
    w.orders.answer_load(asked, len(pages) if blocks is None else blocks)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_prompt_from_elsewhere_is_decoded_from_its_second_token_on(length: int) -> None:
    w = world()
    request = decoding(w, length)
    assert w.state(request.slot) == SlotState.KV_PENDING
    assert w.idle, "it holds nothing while it waits"
    comes(w, request)
    fills(w, request)
    w.finish()
    assert request.finish == Finish.LENGTH
    assert request.tokens == request.expected
    assert all(step.kind == 2 for step in w.steps), "nothing was prefilled"


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_what_the_agent_does_not_fill_is_computed(blocks: int) -> None:
    w = world()
    request = decoding(w)
    comes(w, request)
    fills(w, request, blocks)
    w.finish()
    assert request.tokens == request.expected
    assert w.steps[0].counts == (131 - 64 * blocks,)


def test_the_store_is_offered_what_it_lacks_of_prompt_and_answer() -> None:
    w = world()
    request = decoding(w, 130, 70, cached=64)
    comes(w, request)
    fills(w, request)
    w.finish()
    orders = w.orders.take()
    assert [int(o["first_block"]) for o in orders if int(o["kind"]) == STORE] == [1, 2]
    tokens = np.concatenate([request.prompt, np.array(request.tokens, np.uint32)])
    stored = np.concatenate([o["tokens"] for o in orders if int(o["kind"]) == STORE])
    assert stored.tolist() == tokens[64:192].tolist()


def test_a_prompt_that_does_not_come() -> None:
    w = world()
    request = decoding(w)
    w.orders.answer_load(order(w, RECEIVE), 0)
    w.go()
    assert request.finish == Finish.KV_LOST
    assert [int(o["kind"]) for o in w.orders.take()] == [END]
    assert w.idle


def test_cancelled_while_it_waits_and_an_answer_that_comes_too_late() -> None:
    w = world()
    request = decoding(w)
    late = order(w, RECEIVE)
    w.cancel(request)
    w.finish()
    assert request.finish == Finish.CANCELLED
    assert order(w, END)["generation"] == request.generation
    again = decoding(w)
    assert again.slot == request.slot
    w.orders.answer_load(late, 5)
    w.go(3)
    assert w.state(again.slot) == SlotState.KV_PENDING, "the late answer was taken for another request's"
    comes(w, again)
    fills(w, again)
    w.finish()
    assert again.tokens == again.expected


@pytest.mark.parametrize("length", LENGTHS)
def test_a_prompt_for_elsewhere_shows_its_token_and_holds_its_pages_until_they_are_sent(length: int) -> None:
    w = world()
    request = prefilling(w, length)
    w.go(3)
    assert w.word(request.slot) == (SlotState.DECODE_PAUSED, Finish.NONE, request.generation, 1)
    send = order(w, SEND)
    pages = w.orders.pages_of(send)
    assert (int(send["transfer"]), int(send["tokens"][0])) == (TRANSFER, request.expected[0])
    assert np.array_equal(w.engine.kv[pages].reshape(-1)[:length], request.prompt)
    assert w.native.counters()["free_pages"] == 64 - len(pages)
    w.orders.answer_load(send, len(pages))
    w.finish()
    assert (request.finish, request.tokens) == (Finish.HANDED_OVER, request.expected)
    assert w.idle


def test_a_hand_over_that_fails_frees_the_pages() -> None:
    w = world()
    request = prefilling(w)
    w.go(3)
    w.orders.answer_load(order(w, SEND), 2)
    w.finish()
    assert request.finish == Finish.KV_LOST
    assert w.idle


def test_a_stop_token_first_is_handed_to_nobody() -> None:
    w = world()
    first = w.submit(130, 1).expected[0]
    w.finish()
    request = prefilling(w, stop_ids=[first] + [0] * 7, stop_count=1)
    w.finish()
    assert request.finish == Finish.STOP
    assert not [o for o in w.orders.take() if int(o["kind"]) == SEND]


def test_cancelled_while_it_is_sent_the_pages_are_held_until_the_answer() -> None:
    w = world()
    request = prefilling(w)
    w.go(3)
    send = order(w, SEND)
    w.cancel(request)
    w.go(2)
    assert request.finish == Finish.CANCELLED
    assert not w.idle
    again = decoding(w)
    assert again.finish == Finish.KV_LOST, "an answer is owed still for this slot, and would be mistaken"
    w.orders.answer_load(send, 3)
    w.go(2)
    assert w.idle


@pytest.mark.parametrize(
    "wrong", [{"transfer": 0}, {"max_tokens": 1}, {"flags": RecordFlags.HAND_OVER}], ids=["name", "most", "both"]
)
def test_records_of_a_decode_engine_that_do_not_hold_together(wrong: dict[str, Any]) -> None:
    w = world()
    request = decoding(w, **wrong)
    w.finish()
    assert request.finish == Finish.BAD_RECORD


@pytest.mark.parametrize("wrong", [{"transfer": 0}, {"max_tokens": 2}], ids=["name", "most"])
def test_records_of_a_prefill_engine_that_do_not_hold_together(wrong: dict[str, Any]) -> None:
    w = world()
    request = prefilling(w, **wrong)
    w.finish()
    assert request.finish == Finish.BAD_RECORD


def test_without_an_agent_neither_is_served() -> None:
    w = world(kv_orders=False)
    assert decoding(w).finish == Finish.BAD_RECORD
    request = prefilling(w)
    w.finish()
    assert request.finish == Finish.BAD_RECORD


def test_pages_run_out_between_prompts_from_elsewhere() -> None:
    """The one that yields computes again what it had received, and goes on with the same tokens."""
    w = world(pages=5)
    requests = [decoding(w, 100, 90) for _ in range(2)]
    for asked in w.orders.take():
        w.orders.answer_load(asked, requests[0].expected[0] + 1)  # the same seed, hence the same prompt
    w.go()
    for asked in w.orders.take():
        for i, page in enumerate(w.orders.pages_of(asked).tolist()):
            part = requests[0].prompt[64 * i : 64 * (i + 1)]
            w.engine.kv[page, : len(part)] = part
        w.orders.answer_load(asked, 2)
    for _ in range(500):
        w.go()
        w.orders.take()
        w.orders.release(w.orders.unreleased)
    assert [request.finish for request in requests] == [Finish.LENGTH] * 2
    assert [request.tokens for request in requests] == [request.expected for request in requests]
    assert sum(int(request.report["preemptions"]) for request in requests)
