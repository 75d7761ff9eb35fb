"""The gRPC shell in one process: streams, pushes, refusals, deadlines, metrics."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hostless.v1 import scheduler_pb2 as pb
from hostless.v1 import scheduler_pb2_grpc
from services.common import rpc
from services.common.settings import SettingError
from services.global_scheduler.client import SchedulerClient, SchedulerUnavailable
from services.global_scheduler.liveness import Leases
from services.global_scheduler.mesh import Mesh
from services.global_scheduler.metrics import MeshCollector, schedule_seconds
from services.global_scheduler.policy.least_tokens import LeastTokens
from services.global_scheduler.service import NAME, SchedulerService
from services.global_scheduler.settings import SchedulerSettings


class Running:
    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        self.address = address
        self.registry = registry


@asynccontextmanager
async def scheduler(lease_s: float = 60, address: str = "127.0.0.1:0") -> AsyncIterator[Running]:
    mesh, registry = Mesh(LeastTokens(), Leases(lease_s, time.monotonic)), CollectorRegistry()
    registry.register(MeshCollector(mesh))
    service = SchedulerService(mesh, schedule_seconds(registry))
    async with rpc.serve(address, service.register, [NAME], grace_s=0.1) as server, asyncio.TaskGroup() as tasks:
        expiry = tasks.create_task(service.expire())
        yield Running(f"127.0.0.1:{server.port}", registry)
        expiry.cancel()


class Lead:
    """A leader's open stream, driven by hand."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = scheduler_pb2_grpc.GlobalSchedulerStub(channel).Lead()

    async def say(self, message: pb.LeaderUp) -> int:
        await self._call.write(message)
        async with asyncio.timeout(5):
            return (await self._call.read()).lease_ms

    def hang_up(self) -> None:
        self._call.cancel()


def item(name: str = "r", model: str = "small", prompt: int = 10) -> pb.ScheduleItem:
    return pb.ScheduleItem(request_id=name, model=model, prompt_tokens=prompt, max_tokens=10)


def names(table: pb.PlacementTable) -> list[str]:
    return [info.engine_id for info in table.engines]


async def until(tables: AsyncIterator[pb.PlacementTable], wanted: list[str]) -> None:
    async with asyncio.timeout(10):
        async for table in tables:
            if names(table) == wanted:
                return


async def test_a_burst_is_placed_in_order_or_refused_by_name(up) -> None:
    async with scheduler() as running, rpc.channel(running.address) as channel:
        async with SchedulerClient(running.address) as client:
            assert await Lead(channel).say(up("a", "b")) == 60_000
            placed = await client.schedule([item("1"), item("2"), item("3", model="x"), item("4", prompt=99999)])
            assert [p.engine.engine_id for p in placed] == ["a", "b", "", ""]
            assert [p.refusal.partition(":")[0] for p in placed] == ["", "", "unknown_model", "too_large"]
            assert not placed[2].HasField("engine")
            status = await client.status()
            assert (status.placements, status.refusals) == (2, 2)
            assert [(e.info.engine_id, e.live, e.placements) for e in status.engines] == [
                ("a", True, 1),
                ("b", True, 1),
            ]
        metrics = generate_latest(running.registry).decode()
        assert 'hostless:scheduler_path_choice_total{path="unified"} 2.0' in metrics
        assert 'hostless:scheduler_refusals_total{reason="too_large"} 1.0' in metrics
        assert 'hostless:scheduler_engine_live{engine="a",model_name="small"} 1.0' in metrics


async def test_watch_pushes_each_kind_of_change(up) -> None:
    async with (
        scheduler(lease_s=0.5) as running,
        rpc.channel(running.address) as channel,
        SchedulerClient(running.address) as client,
        aclosing(client.watch()) as tables,
    ):
        await until(tables, [])
        one, two = Lead(channel), Lead(channel)
        await one.say(up("a", group="one"))
        await until(tables, ["a"])
        await one.say(up("a", accepting=False, group="one"))
        await until(tables, [])
        await one.say(up("a", group="one"))
        await until(tables, ["a"])
        await until(tables, [])  # its lease ran out, though nothing came
        await one.say(up("a", group="one", introduce=False))
        await two.say(up("b", group="two"))
        await until(tables, ["a", "b"])
        two.hang_up()
        await until(tables, ["a"])


async def test_watch_outlives_the_scheduler(up) -> None:
    async with SchedulerClient("127.0.0.1:1") as nobody, aclosing(nobody.watch()) as tables:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(tables)
    async with scheduler() as running, rpc.channel(running.address) as channel:
        client = SchedulerClient(running.address)
        tables = client.watch()
        await Lead(channel).say(up("a"))
        await until(tables, ["a"])
    again = asyncio.ensure_future(until(tables, []))
    async with scheduler(address=running.address):
        await again
        await tables.aclose()
        await client.close()


async def test_a_leader_that_was_replaced_is_told_so(up) -> None:
    async with scheduler() as running, rpc.channel(running.address) as channel:
        old, new = Lead(channel), Lead(channel)
        await old.say(up("a", epoch=1))
        await new.say(up("a", epoch=2))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await old.say(up("a", introduce=False))
        assert error.value.code() == grpc.StatusCode.ABORTED
        await new.say(up("a", introduce=False))


async def test_a_malformed_report_is_an_error_that_names_it(up) -> None:
    async with scheduler() as running, rpc.channel(running.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="did not introduce") as error:
            await Lead(channel).say(up("a", introduce=False))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_schedule_has_a_deadline_when_nobody_is_there() -> None:
    async with SchedulerClient("127.0.0.1:1") as client:
        with pytest.raises(SchedulerUnavailable, match=r"127\.0\.0\.1:1: (UNAVAILABLE|DEADLINE_EXCEEDED)"):
            await client.schedule([item()], timeout_s=0.2)


@pytest.mark.parametrize("bad", [{"policy": "x"}, {"lease_ms": 1}, {"address": "7010"}])
def test_bad_settings_are_named(bad: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=next(iter(bad)).replace("_", "-")):
        SchedulerSettings(**bad)  # type: ignore[arg-type]
