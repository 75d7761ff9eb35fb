"""Orders to the KV agent: what is loaded, what is stored, and that serving never waits for either."""

from typing import Any

import numpy as np

from services.fabric._ring import Finish, RecordFlags, SlotState
from services.gpu_backend._scheduler import KvOrderKind, Turn
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.world import Request, World

LOAD, STORE, END = KvOrderKind.LOAD, KvOrderKind.STORE, KvOrderKind.END


def world(**changes: Any) -> World:
    values: dict[str, Any] = {"lanes": 4, "step_tokens": 256, "pages": 64, "kv_orders": True, **changes}
    return World(SchedulerSettings(**values))


def take(w: World) -> list[tuple[KvOrderKind, int, int]]:
    """Kind, slot and first block of the orders that have come."""
    return [(KvOrderKind(int(o["kind"])), int(o["slot"]), int(o["first_block"])) for o in w.orders.take()]


def answer(w: World, request: Request, blocks: int) -> None:
    """The load of a request that is the only one: its first blocks are put in their pages."""
    order = next(o for o in w.orders.take() if int(o["kind"]) == LOAD)
    assert int(order["slot"]) == request.slot
    assert int(order["block_count"]) == request.cached // 64
    for i, page in enumerate(w.orders.pages_of(order)[:blocks].tolist()):
        w.engine.kv[page] = request.prompt[64 * i : 64 * (i + 1)]
    w.orders.answer_load(order, blocks)


def test_each_block_is_offered_as_it_fills_with_its_tokens_and_then_the_end() -> None:
    w = world()
    request = w.submit(130, 70)  # blocks 0 and 1 with the prompt, block 2 while decoding
    w.finish()
    orders = w.orders.take()
    assert [int(o["kind"]) for o in orders] == [STORE, STORE, STORE, END]
    assert orders["first_block"][:3].tolist() == [0, 1, 2]
    assert set(orders["generation"].tolist()) == {request.generation}
    tokens = np.concatenate([request.prompt, np.array(request.tokens, np.uint32)])
    assert orders["tokens"][:3].reshape(-1).tolist() == tokens[:192].tolist()
    assert w.native.counters()["free_pages"] == 64 - 3
    w.orders.release(4)
    w.turn()
    assert w.idle


def test_nothing_is_offered_without_a_root_against_the_flag_or_without_an_agent() -> None:
    w = world()
    w.submit(130, 2, spoil={"flags": RecordFlags.NO_PERSIST})
    w.submit(130, 2, spoil={"kv_root": 0})
    w.finish()
    assert take(w) == []
    alone = world(kv_orders=False)
    request = alone.submit(130, 2, cached=128)
    alone.finish()
    assert take(alone) == []
    assert request.finish == Finish.LENGTH


def test_a_loaded_prefix_is_neither_computed_nor_stored_again() -> None:
    w = world()
    request = w.submit(150, 3, cached=128)
    w.turn()
    assert w.turn() == Turn.WAITING
    answer(w, request, 2)
    w.finish()
    assert w.steps[0].counts == (22,)
    assert request.tokens == request.expected
    assert request.report["cached_tokens"] == 128
    assert take(w) == [(END, request.slot, 0)]


def test_blocks_that_are_missing_are_computed_and_stored() -> None:
    w = world()
    request = w.submit(150, 3, cached=128)
    w.turn()
    answer(w, request, 1)
    w.finish()
    assert w.steps[0].counts == (86,)
    assert request.tokens == request.expected
    assert take(w) == [(STORE, request.slot, 1), (END, request.slot, 0)]


def test_a_load_holds_up_nobody_else() -> None:
    w = world()
    loading, other = w.submit(150, 3, cached=128), w.submit(20, 3)
    w.go(6)
    assert other.finish == Finish.LENGTH
    assert w.state(loading.slot) == SlotState.PREFILL_PROCESSING


def test_a_cancel_during_a_load_is_told_at_once_and_its_pages_kept_for_the_answer() -> None:
    w = world()
    request = w.submit(150, 3, cached=128)
    w.turn()
    w.cancel(request)
    w.turn()
    w.collect()
    assert request.finish == Finish.CANCELLED
    assert w.native.counters()["free_pages"] == 64 - 3
    again = w.submit(150, 3, cached=128)
    assert again.slot == request.slot
    w.go(3)  # the slot's earlier load is not answered, so this one computes everything
    assert w.steps[0].counts == (150,)
    orders = w.orders.take()
    w.orders.answer_load(orders[0], 2)
    w.finish()
    assert again.tokens == again.expected
    w.turn()
    w.orders.release(w.orders.unreleased)
    later = w.orders.take()
    ends = [(int(o["slot"]), int(o["generation"])) for o in [*orders, *later] if int(o["kind"]) == END]
    assert sorted(ends) == [(request.slot, request.generation), (again.slot, again.generation)]
    w.orders.release(w.orders.unreleased)
    w.turn()
    assert w.idle


def test_a_full_order_ring_drops_blocks_and_still_tells_every_end() -> None:
    w = world(order_capacity=4)
    requests = [w.submit(250, 2, seed=i) for i in range(3)]
    w.finish()
    assert [r.tokens == r.expected for r in requests] == [True] * 3
    assert w.native.counters()["blocks_dropped"] > 0
    orders = take(w)
    assert {slot for kind, slot, _ in orders if kind == END} == {slot for kind, slot, _ in orders if kind == STORE}


def test_stores_hold_no_more_pages_than_allowed() -> None:
    w = world(store_limit=2)
    w.submit(250, 2)
    w.finish()
    assert [kind for kind, _, _ in take(w)] == [STORE, STORE, END]
    assert w.native.counters()["free_pages"] == 62


def test_a_request_is_evicted_rather_than_awaiting_an_agent_that_stands_still() -> None:
    w = world(pages=5, lanes=2, agent_patience_s=1.0)
    first, second = w.submit(120, 100), w.submit(64, 100)  # store orders, which nobody takes
    w.finish(3000)
    assert (first.tokens, second.tokens) == (first.expected, second.expected)


def test_a_store_is_not_offered_again_after_an_eviction() -> None:
    w = world(pages=3, lanes=2, store_limit=3)
    w.submit(50, 30)
    w.submit(100, 60, seed=1)
    seen = []
    for _ in range(1000):
        w.go()
        seen += [(slot, block) for kind, slot, block in take(w) if kind == STORE]
        w.orders.release(w.orders.unreleased)
        if not w.live:
            break
    assert w.native.counters()["preemptions"] > 0
    assert len(seen) == len(set(seen))
