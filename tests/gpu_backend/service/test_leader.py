"""The leader against a scheduler that comes, goes and falls silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from hostless.v1 import scheduler_pb2 as pb
from hostless.v1 import scheduler_pb2_grpc
from services.common import rpc
from services.gpu_backend import leader as leader_module
from services.gpu_backend.leader import Leader


class Scheduler(scheduler_pb2_grpc.GlobalSchedulerServicer):
    def __init__(self, lease_ms: int = 60_000, silent: bool = False) -> None:
        self.heard: asyncio.Queue[pb.LeaderUp] = asyncio.Queue()
        self.lease_ms = lease_ms
        self.silent = silent
        self.streams = 0

    def register(self, server: grpc.aio.Server) -> None:
        scheduler_pb2_grpc.add_GlobalSchedulerServicer_to_server(self, server)

    async def Lead(self, ups: AsyncIterator[pb.LeaderUp], context: object) -> AsyncIterator[pb.LeaderDown]:
        self.streams += 1
        async for up in ups:
            self.heard.put_nowait(up)
            if not self.silent:
                yield pb.LeaderDown(lease_ms=self.lease_ms)

    async def hear(self) -> pb.LeaderUp:
        return await asyncio.wait_for(self.heard.get(), 60)


@asynccontextmanager
async def serving(scheduler: Scheduler, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    async with rpc.serve(address, scheduler.register, ["hostless.v1.GlobalScheduler"], grace_s=0) as server:
        yield f"127.0.0.1:{server.port}"


class Told:
    requests = 0
    accepting = True

    def __init__(self) -> None:
        self.anew: list[bool] = []

    def __call__(self, anew: bool) -> pb.EngineReport:
        self.anew.append(anew)
        return pb.EngineReport(engine_id="e", requests=self.requests, accepting=self.accepting)


@asynccontextmanager
async def leading(address: str, told: Told, busy_s: float = 60, idle_s: float = 60) -> AsyncIterator[Leader]:
    leader = Leader(address, "group", pb.EngineInfo(engine_id="e", epoch=7), told, busy_s, idle_s)
    task = asyncio.create_task(leader.run())
    yield leader
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_introduces_once_then_reports_at_the_pace_of_its_work() -> None:
    scheduler, told = Scheduler(), Told()
    async with serving(scheduler) as address, leading(address, told, busy_s=0.01) as leader:
        first = await scheduler.hear()
        assert (first.group_id, first.engines[0].epoch, first.reports[0].accepting) == ("group", 7, True)
        told.requests = 2  # idle until then: only a push gets through
        leader.tell_soon()
        assert [len((await scheduler.hear()).engines) for _ in range(5)] == [0] * 5


async def test_reports_several_times_within_the_lease() -> None:
    scheduler = Scheduler(lease_ms=60)
    async with serving(scheduler) as address, leading(address, Told()):
        for _ in range(4):
            await scheduler.hear()


async def test_tell_now_returns_when_the_scheduler_has_taken_note() -> None:
    scheduler, told = Scheduler(), Told()
    async with serving(scheduler) as address, leading(address, told) as leader:
        await scheduler.hear()
        told.accepting = False
        assert await leader.tell_now(10)
        assert not scheduler.heard.get_nowait().reports[0].accepting


async def test_tell_now_gives_up_when_nobody_is_there() -> None:
    async with leading("127.0.0.1:1", Told()) as leader:
        assert not await leader.tell_now(0.1)


async def test_comes_back_to_a_scheduler_that_restarted_and_introduces_itself_again() -> None:
    first, second = Scheduler(), Scheduler()
    async with leading("127.0.0.1:1", Told()):
        pass
    async with serving(first) as address:
        leader_context = leading(address, Told(), idle_s=0.05)
        await leader_context.__aenter__()
        await first.hear()
    async with serving(second, address):
        assert (await second.hear()).engines[0].engine_id == "e"
        await leader_context.__aexit__(None, None, None)


async def test_a_silent_scheduler_is_left_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_module, "ANSWER_S", 0.05)
    scheduler = Scheduler(silent=True)
    async with serving(scheduler) as address, leading(address, Told()):
        for _ in range(3):
            assert (await scheduler.hear()).engines
    assert scheduler.streams >= 3


async def test_an_engine_that_was_replaced_waits_before_it_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Replacing(Scheduler):
        async def Lead(self, ups: AsyncIterator[pb.LeaderUp], context: grpc.aio.ServicerContext) -> None:
            self.streams += 1
            self.heard.put_nowait(pb.LeaderUp())
            await context.abort(grpc.StatusCode.ABORTED, "engine 'e' is led by another stream")

    pauses: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(seconds: float) -> None:
        pauses.put_nowait(seconds)
        await asyncio.Event().wait()

    scheduler = Replacing()
    async with serving(scheduler) as address:
        monkeypatch.setattr(leader_module.asyncio, "sleep", sleep)
        async with leading(address, Told()):
            await scheduler.hear()
            assert await pauses.get() >= 0.5 * leader_module.LONGEST_PAUSE_S
    assert "engine 'e' is led by another stream" in str([vars(record) for record in caplog.records])
