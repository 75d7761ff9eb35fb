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
from services.cli.mesh.ports import free_ports
from services.common import rpc
from services.common.keys import block_keys, marks, root_key
from services.common.lane import server as lane
from services.common.settings import SettingError
from services.global_scheduler.client import SchedulerClient, SchedulerUnavailable
from services.global_scheduler.liveness import Leases
from services.global_scheduler.mesh import Mesh
from services.global_scheduler.metrics import MeshCollector, schedule_seconds
from services.global_scheduler.policy.least_tokens import LeastTokens
from services.global_scheduler.policy.parameters import Parameters
from services.global_scheduler.policy.registry import make_policy
from services.global_scheduler.policy.state import Policy
from services.global_scheduler.service import NAME, SchedulerService
from services.global_scheduler.settings import SchedulerSettings
from tests.waiting import PATIENCE_S


class Running:
    def __init__(self, address: str, registry: CollectorRegistry, mesh: Mesh) -> None:
        self.address = address
        self.registry = registry
        self.mesh = mesh


@asynccontextmanager
async def scheduler(
    leases: Leases | None = None, address: str = "127.0.0.1:0", policy: Policy | None = None, wait_s: float = 60
) -> AsyncIterator[Running]:
    mesh, registry = Mesh(policy or LeastTokens(), leases or Leases(60, time.monotonic)), CollectorRegistry()
    registry.register(MeshCollector(mesh))
    service = SchedulerService(mesh, schedule_seconds(registry), wait_s)
    async with (
        lane.serve("127.0.0.1", 0, service.answer) as service.lane_port,
        rpc.serve(address, service.register, [NAME], grace_s=0.1) as server,
        asyncio.TaskGroup() as tasks,
    ):
        expiry = tasks.create_task(service.expire())
        yield Running(f"127.0.0.1:{server.port}", registry, mesh)
        expiry.cancel()


class Lead:
    """A leader's open stream, driven by hand."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = scheduler_pb2_grpc.GlobalSchedulerStub(channel).Lead()

    async def say(self, message: pb.LeaderUp) -> int:
        await self._call.write(message)
        async with asyncio.timeout(PATIENCE_S):
            return (await self._call.read()).lease_ms

    def hang_up(self) -> None:
        self._call.cancel()


def item(name: str = "r", model: str = "small", prompt: int = 10, hit: int = 0) -> pb.ScheduleItem:
    return pb.ScheduleItem(request_id=name, model=model, prompt_tokens=prompt, max_tokens=10, cached_tokens=hit)


def names(table: pb.PlacementTable) -> list[str]:
    return [info.engine_id for info in table.engines]


async def until(tables: AsyncIterator[pb.PlacementTable], wanted: list[str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for table in tables:
            if names(table) == wanted:
                return


async def test_a_burst_is_placed_in_order_or_refused_by_name(up) -> None:
    async with scheduler() as running, rpc.channel(running.address) as channel:
        async with SchedulerClient(running.address) as client:
            assert await Lead(channel).say(up("a", "b")) == 60_000
            placed = await client.schedule(
                [item("1"), item("2"), item("3", model="x"), item("4", prompt=99999)], PATIENCE_S
            )
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


async def test_apart_engines_are_told_with_the_path_and_who_reads_what(up) -> None:
    policy = make_policy("dualpath", Parameters(split_reads=True))
    async with (
        scheduler(policy=policy) as running,
        rpc.channel(running.address) as channel,
        SchedulerClient(running.address) as client,
    ):
        await Lead(channel).say(up("p", group="one", role=pb.ROLE_PREFILL, node="rack 1", reads=128))
        await Lead(channel).say(up("d", group="two", role=pb.ROLE_DECODE))
        (placed,) = await client.schedule([item(prompt=700, hit=640)], PATIENCE_S)
        assert (placed.engine.engine_id, placed.decode.engine_id) == ("p", "d")
        assert (placed.path, placed.refusal) == (pb.READ_PATH_SPLIT, "")
        assert (placed.prefill_read_tokens, placed.decode_read_tokens, placed.reused_tokens) == (256, 384, 0)
        status = await client.status()
        assert list(status.path_choices) == [0, 0, 0, 1]
        assert [engine.placements for engine in status.engines] == [1, 1]


async def test_a_hit_is_placed_where_it_is_held_as_long_as_that_is_known(up) -> None:
    hit = marks(block_keys(root_key("layout", "tenant"), range(640)))
    other = marks(block_keys(root_key("layout", "another"), range(640)))

    def holding(*engine_ids: str, epoch: int = 1, introduce: bool = True, **held: bytes) -> pb.LeaderUp:
        told = up(*engine_ids, epoch=epoch, introduce=introduce)
        for report in told.reports:
            report.held_added, report.held_removed = held.get("added", b""), held.get("removed", b"")
        return told

    async def placed(client: SchedulerClient, marks: bytes = hit) -> tuple[str, int, int]:
        asked = item(prompt=700, hit=640)
        asked.hit_marks = marks
        (where,) = await client.schedule([asked], PATIENCE_S)
        await first.say(up("a", introduce=False))  # what was placed is done
        await second.say(up("b", introduce=False))
        return where.engine.engine_id, where.prefill_read_tokens, where.reused_tokens

    async with (
        scheduler(policy=make_policy("least_tokens", Parameters(local_reuse=True))) as running,
        rpc.channel(running.address) as channel,
        SchedulerClient(running.address) as client,
    ):
        first, second = Lead(channel), Lead(channel)
        await first.say(up("a"))
        await second.say(holding("b", added=hit))
        assert await placed(client) == ("b", 0, 640)
        assert await placed(client, other) == ("a", 640, 0), "another tenant's blocks have other keys"
        await second.say(holding("b", introduce=False, removed=hit[-8:]))
        assert await placed(client) == ("b", 64, 576)
        await second.say(holding("b", epoch=2))  # it has started anew, with nothing in its memory
        assert await placed(client) == ("a", 640, 0)
        await second.say(holding("b", introduce=False, added=hit))
        assert await placed(client) == ("b", 0, 640)
        assert "hostless:scheduler_reused_tokens_total 1856.0" in generate_latest(running.registry).decode()
        assert not any(engine.report.held_added for engine in (await client.status()).engines)
        second.hang_up()
        second = Lead(channel)
        await second.say(up("b"))
        assert await placed(client) == ("a", 640, 0)
        with pytest.raises(grpc.aio.AioRpcError, match="held blocks are 8 bytes each"):
            await second.say(holding("b", introduce=False, added=b"123"))
        running.mesh.held.check()


@asynccontextmanager
async def full(up, wait_s: float = 60) -> AsyncIterator[tuple[Running, SchedulerClient, Lead]]:
    """A mesh whose one prefill engine, of the given leader, is overloaded."""
    policy = make_policy("dualpath", Parameters(beta_tokens=100))
    async with (
        scheduler(policy=policy, wait_s=wait_s) as running,
        rpc.channel(running.address) as channel,
        SchedulerClient(running.address) as client,
    ):
        prefill = Lead(channel)
        await prefill.say(up("p", tokens=101, group="one", role=pb.ROLE_PREFILL))
        await Lead(channel).say(up("d", group="two", role=pb.ROLE_DECODE))
        yield running, client, prefill


async def until_waiting(mesh: Mesh, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while mesh.waiting != count:  # noqa: ASYNC110 - the mesh tells nobody
            await asyncio.sleep(0)


async def test_a_request_waits_for_a_report_that_makes_room(up) -> None:
    async with full(up) as (running, client, prefill), asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(client.schedule([item("1"), item("2")], PATIENCE_S))
        await until_waiting(running.mesh, 2)
        assert b"hostless:scheduler_waiting 2.0" in generate_latest(running.registry)
        await prefill.say(up("p", group="one", introduce=False, role=pb.ROLE_PREFILL))
        assert [placed.decode.engine_id for placed in await asked] == ["d", "d"]
        assert running.mesh.waiting == 0


async def on_lane(client: SchedulerClient) -> None:
    """By a request that is refused at once."""
    await client.schedule([item(model="none")], PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        while client._lane.lane is None:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0)


async def test_nobody_waits_on_the_lane(up) -> None:
    async with full(up) as (running, client, prefill), asyncio.TaskGroup() as tasks:
        await on_lane(client)
        (refused,) = await client.schedule([item(model="none")], PATIENCE_S)
        assert refused.refusal.startswith("unknown_model: ")
        mixed = [item("1"), item("2", model="none"), item("3")]
        asked = tasks.create_task(client.schedule(mixed, PATIENCE_S))
        await until_waiting(running.mesh, 2)
        await prefill.say(up("p", group="one", introduce=False, role=pb.ROLE_PREFILL))
        assert [placed.decode.engine_id for placed in await asked] == ["d", "", "d"]
        (placed,) = await client.schedule([item()], PATIENCE_S)
        assert (placed.engine.engine_id, running.mesh.waiting) == ("p", 0)
        assert client._lane.lane is not None


async def test_a_lane_that_breaks_is_replaced(up) -> None:
    async with full(up) as (_, client, _):
        for _ in range(2):
            await on_lane(client)
            assert client._lane.lane is not None
            client._lane.lane.close()
        (refused,) = await client.schedule([item(model="none")], PATIENCE_S)
        assert refused.refusal


async def test_a_wait_ends_at_its_bound_or_before_the_callers_deadline(up, monkeypatch: pytest.MonkeyPatch) -> None:
    async with full(up, wait_s=0.05) as (running, client, _):
        (refused,) = await client.schedule([item()], PATIENCE_S)
        assert refused.refusal.startswith("overloaded: the engines were overloaded for the 0.05 s")
        assert running.mesh.waiting == 0
    monkeypatch.setattr("services.global_scheduler.service.ANSWER_S", PATIENCE_S - 0.1)
    async with full(up, wait_s=2 * PATIENCE_S) as (running, client, _):
        (refused,) = await client.schedule([item()], timeout_s=PATIENCE_S)
        assert refused.refusal.startswith("overloaded: ")
        assert running.mesh.waiting == 0


async def test_who_hangs_up_waits_no_more(up) -> None:
    async with full(up) as (running, client, _):
        asked = asyncio.ensure_future(client.schedule([item()], PATIENCE_S))
        await until_waiting(running.mesh, 1)
        asked.cancel()
        await until_waiting(running.mesh, 0)


async def test_a_lost_engine_ends_the_wait_for_it(up) -> None:
    async with full(up) as (running, client, prefill), asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(client.schedule([item()], PATIENCE_S))
        await until_waiting(running.mesh, 1)
        prefill.hang_up()
        (refused,) = await asked
        assert refused.refusal.startswith("no_live_engine: ")


async def test_watch_pushes_each_kind_of_change(up) -> None:
    now = [0.0]  # by which leases run out; the service looks as often as they may
    async with (
        scheduler(Leases(0.05, lambda: now[0])) as running,
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
        now[0] = 1.0
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
    with free_ports(1, "127.0.0.1") as [port]:
        address = f"127.0.0.1:{port}"
        async with SchedulerClient(address) as client, aclosing(client.watch()) as tables:
            async with scheduler(address=address), rpc.channel(address) as channel:
                await Lead(channel).say(up("a"))
                await until(tables, ["a"])
            again = asyncio.ensure_future(until(tables, []))
            async with scheduler(address=address):
                await again


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
