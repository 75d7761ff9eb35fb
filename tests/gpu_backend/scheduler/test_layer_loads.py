"""Loads that are answered at their first layer (D6): the lane's word decides who counts and who is kept."""

from typing import Any

import pytest

from services.fabric._ring import Finish, RecordFlags
from services.gpu_backend._scheduler import KvOrderKind
from services.gpu_backend.layers import LayerCounters
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.world import Request, World

HANDS_OVER = {"transfer": 7, "flags": int(RecordFlags.HAND_OVER | RecordFlags.NO_PERSIST)}


class Early:
    """A request of 150 tokens whose two stored blocks are said to be there before they are; its step flies, or waits
    `behind` another one's."""

    def __init__(self, behind: bool = False) -> None:
        self.w = World(SchedulerSettings(lanes=4, step_tokens=256, pages=8, kv_orders=True))
        self.layers: LayerCounters = self.w.memory.layer_counters(windowed=False)
        self.request: Request = self.w.submit(150, 3, cached=128)
        self.w.turn()
        [self.order] = self.w.orders.take()
        self.lane, self.pages = int(self.order["lane"]), self.w.orders.pages_of(self.order).tolist()
        if behind:
            self.w.submit(20, 1, seed=1)
            self.w.turn()
        self.layers.open(self.lane)
        self.w.orders.answer_load(self.order, 2)
        self.w.turn()
        self.w.turn()
        assert self.w.steps[0].counts == ((20,) if behind else (22,)), "the step begins while the layers come"

    def fill(self) -> None:
        for i, page in enumerate(self.pages):
            self.w.engine.kv[page] = self.request.prompt[64 * i : 64 * (i + 1)]

    def kinds(self) -> list[KvOrderKind]:
        return [KvOrderKind(int(order["kind"])) for order in self.w.orders.take()]


def test_the_step_that_waited_counts() -> None:
    e = Early()
    e.fill()
    e.layers.close(e.lane, 1)
    e.w.finish()
    assert e.request.tokens == e.request.expected
    assert e.request.report["cached_tokens"] == 128


def test_layers_that_do_not_come_are_computed_once_more() -> None:
    e = Early()
    e.layers.fail(e.lane)
    e.w.finish()
    assert [step.counts for step in e.w.steps[:2]] == [(22,), (150,)]
    assert e.request.tokens == e.request.expected
    assert (e.request.finish, e.request.report["cached_tokens"]) == (Finish.LENGTH, 0)


def test_layers_that_do_not_come_twice_end_the_request() -> None:
    e = Early()
    e.layers.fail(e.lane)
    e.w.go()
    assert e.w.steps[-1].counts == (150,)
    e.layers.fail(e.lane)
    e.w.finish()
    assert e.request.finish == Finish.KV_LOST


@pytest.mark.parametrize("came", [True, False])
def test_cancelled_with_layers_on_their_way_its_pages_are_kept(came: bool) -> None:
    e = Early(behind=True)
    e.w.cancel(e.request)
    e.w.turn()
    e.w.collect()
    assert e.request.finish == Finish.CANCELLED
    e.w.finish()
    assert e.w.native.counters()["free_pages"] == 8 - 3
    assert e.kinds() == [], "the agent hears of the end when it has let go"
    again = e.w.submit(150, 3, cached=128)
    assert again.slot == e.request.slot
    e.w.turn()
    e.w.turn()
    assert e.w.steps[-1].counts == (150,), "no other load for this slot meanwhile"
    e.layers.close(e.lane, 1) if came else e.layers.fail(e.lane)
    e.w.finish()
    assert again.tokens == again.expected
    assert KvOrderKind.END in e.kinds()
    e.w.orders.release(e.w.orders.unreleased)
    e.w.turn()
    assert e.w.idle


def test_a_failed_step_leaves_pages_to_the_agent_until_it_is_done() -> None:
    e = Early()
    e.w.land(error=1)
    e.w.turn()
    e.w.collect()
    assert e.request.finish == Finish.ENGINE_ERROR
    assert not e.w.idle
    e.layers.fail(e.lane)
    e.w.turn()
    assert e.w.idle


@pytest.mark.parametrize(("fields", "told"), [(HANDS_OVER, True), ({}, False)], ids=["handed over", "served here"])
def test_who_hands_over_says_so_before_it_computes(fields: dict[str, Any], told: bool) -> None:
    w = World(SchedulerSettings(lanes=4, step_tokens=256, pages=8, kv_orders=True))
    w.submit(150, 1, spoil=fields)
    w.turn()
    w.turn()
    row = w.memory.step_view().sequences[0]
    assert (int(row["hands_over"]), int(row["generation"])) == (int(told), w.live[int(row["slot"])].generation)
    kinds = [KvOrderKind(int(order["kind"])) for order in w.orders.take()]
    assert kinds == ([KvOrderKind.PREFILL] if told else [])
