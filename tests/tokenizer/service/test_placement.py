"""Placing while engines are overloaded, one model beside another, and without the scheduler."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

import pytest

from hostless.v1 import scheduler_pb2 as pb
from services.global_scheduler.client import SchedulerClient, SchedulerUnavailable
from services.tokenizer.errors import RequestError
from services.tokenizer.live_engines import LiveEngines
from services.tokenizer.placement import Placer

GOOD = pb.Placement(engine=pb.EngineInfo(engine_id="e"))
Answer = Callable[[pb.ScheduleItem], pb.Placement]


class FakeClient:
    """Answers by script; `held` models get no answer until they are let go."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[list[str]] = []
        self.held: dict[str, asyncio.Event] = {}

    async def schedule(self, items: Sequence[pb.ScheduleItem], timeout_s: float) -> list[pb.Placement]:
        self.calls.append([item.request_id for item in items])
        for item in items:
            if event := self.held.get(item.model):
                await event.wait()
        return [self.answer(item) for item in items]


def info(engine_id: str, role: pb.Role = pb.ROLE_UNIFIED, receives: int = 0) -> pb.EngineInfo:
    return pb.EngineInfo(
        engine_id=engine_id, role=role, model="m", epoch=1, page_tokens=64, page_count=10, max_context=640,
        receive_tokens=receives,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def placing(
    answer: Answer, *engines: pb.EngineInfo, wait_s: float = 20.0
) -> AsyncIterator[tuple[Placer, FakeClient]]:
    live, client = LiveEngines(), FakeClient(answer)
    live.update(pb.PlacementTable(engines=engines or [info("e")]))
    placer = Placer(cast(SchedulerClient, client), live, lambda _: True, wait_s)
    task = asyncio.create_task(placer.run())
    try:
        yield placer, client
    finally:
        task.cancel()
        await asyncio.wait([task])


def item(request_id: str = "r", model: str = "m", tokens: int = 10) -> pb.ScheduleItem:
    return pb.ScheduleItem(request_id=request_id, model=model, prompt_tokens=tokens, max_tokens=5)


def refused(reason: str) -> pb.Placement:
    return pb.Placement(refusal=f"{reason}: words")


@pytest.mark.parametrize("reason", ["overloaded", "queue_full"])
async def test_overload_is_waited_out(reason: str) -> None:
    answers = iter([refused(reason), refused(reason), GOOD])
    async with placing(lambda _: next(answers)) as (placer, _):
        assert await placer.place(item(), frozenset()) == GOOD


@pytest.mark.parametrize(("reason", "status"), [("overloaded", 503), ("queue_full", 429), ("no_live_engine", 503)])
async def test_what_lasts_longer_than_a_request_waits_is_told(reason: str, status: int) -> None:
    async with placing(lambda _: refused(reason), wait_s=0.05) as (placer, _):
        with pytest.raises(RequestError, match="words") as told:
            await placer.place(item(), frozenset())
        assert told.value.http_status == status


async def test_a_model_whose_engines_are_overloaded_holds_up_no_other() -> None:
    async with placing(lambda _: GOOD) as (placer, client):
        held = client.held["slow"] = asyncio.Event()
        slow = asyncio.create_task(placer.place(item("1", "slow"), frozenset()))
        quick = asyncio.create_task(placer.place(item("2"), frozenset()))
        assert await quick == GOOD
        assert await placer.place(item("3"), frozenset()) == GOOD
        assert not slow.done()
        held.set()
        assert await slow == GOOD


async def test_a_burst_goes_in_one_call() -> None:
    async with placing(lambda _: GOOD) as (placer, client):
        await asyncio.gather(*(placer.place(item(str(i)), frozenset()) for i in range(20)))
        assert client.calls == [[str(i) for i in range(20)]]


def away(item: pb.ScheduleItem) -> pb.Placement:
    raise SchedulerUnavailable("away")


async def test_without_the_scheduler_one_engine_comes_before_two() -> None:
    engines = [info("p", pb.ROLE_PREFILL), info("d", pb.ROLE_DECODE), info("u")]
    async with placing(away, *engines) as (placer, _):
        placed = await placer.place(item(), frozenset())
        assert (placed.engine.engine_id, placed.HasField("decode")) == ("u", False)
        placed = await placer.place(item(), frozenset({("u", 1)}))
        assert (placed.engine.engine_id, placed.decode.engine_id) == ("p", "d")
        assert placed.path == pb.READ_PATH_PREFILL


async def test_without_the_scheduler_a_prompt_goes_where_it_can_be_taken_over() -> None:
    engines = [info("p", pb.ROLE_PREFILL), info("little", pb.ROLE_DECODE, 9), info("large", pb.ROLE_DECODE, 10)]
    async with placing(away, *engines) as (placer, _):
        for _ in engines:
            assert (await placer.place(item(tokens=10), frozenset())).decode.engine_id == "large"


async def test_without_the_scheduler_a_prefill_engine_alone_is_none() -> None:
    async with placing(away, info("p", pb.ROLE_PREFILL), wait_s=0.05) as (placer, _):
        with pytest.raises(RequestError, match="no engine"):
            await placer.place(item(), frozenset())
