"""Real processes, really killed and frozen: nothing is routed to an engine whose lease has run out."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from hostless.v1 import scheduler_pb2 as pb
from services.global_scheduler.client import SchedulerClient, SchedulerUnavailable
from tests.processes import ServiceProcess, service
from tests.waiting import PATIENCE_S

LEASE_MS = 3000


def scheduler(*flags: str, wait: bool = True) -> AbstractAsyncContextManager[ServiceProcess]:
    return service("global_scheduler", "--lease-ms", str(LEASE_MS), *flags, wait=wait)


@asynccontextmanager
async def leader(address: str, engine_id: str) -> AsyncIterator[asyncio.subprocess.Process]:
    script = str(Path(__file__).with_name("leader_process.py"))
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(
        sys.executable, script, address, engine_id, "0.2", stdout=pipe, stderr=pipe
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def until(tables: AsyncIterator[pb.PlacementTable], wanted: set[str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async for table in tables:
            if {info.engine_id for info in table.engines} == wanted:
                return


async def chosen(client: SchedulerClient, count: int = 6) -> set[str]:
    items = [pb.ScheduleItem(request_id=str(i), model="small", prompt_tokens=10, max_tokens=10) for i in range(count)]
    return {p.engine.engine_id or p.refusal.partition(":")[0] for p in await client.schedule(items, PATIENCE_S)}


async def test_a_killed_and_a_frozen_leader_get_nothing() -> None:
    async with (
        scheduler() as running,
        SchedulerClient(running.address) as client,
        aclosing(client.watch()) as tables,
        leader(running.address, "steady"),
        leader(running.address, "killed") as killed,
        leader(running.address, "frozen") as frozen,
    ):
        await until(tables, {"steady", "killed", "frozen"})
        assert await chosen(client) == {"steady", "killed", "frozen"}
        killed.kill()
        await until(tables, {"steady", "frozen"})
        assert await chosen(client) == {"steady", "frozen"}
        os.kill(frozen.pid, signal.SIGSTOP)
        await until(tables, {"steady"})
        assert await chosen(client) == {"steady"}
        status = {e.info.engine_id: e for e in (await client.status()).engines}
        assert not status["frozen"].live
        assert status["frozen"].report_age_ms >= LEASE_MS
        os.kill(frozen.pid, signal.SIGCONT)
        await until(tables, {"steady", "frozen"})
        assert "frozen" in await chosen(client)


async def test_a_restarted_engine_takes_its_name_over_from_a_frozen_one() -> None:
    async with (
        scheduler() as running,
        SchedulerClient(running.address) as client,
        aclosing(client.watch()) as tables,
        leader(running.address, "a") as old,
    ):
        await until(tables, {"a"})
        (before,) = (await client.status()).engines
        os.kill(old.pid, signal.SIGSTOP)
        async with leader(running.address, "a"), asyncio.timeout(PATIENCE_S):
            while (after := (await client.status()).engines[0]).info.epoch == before.info.epoch or not after.live:
                await anext(tables)
            os.kill(old.pid, signal.SIGCONT)
            assert await old.wait() == 1  # told that it was replaced
            assert await chosen(client) == {"a"}


async def test_a_frozen_scheduler_finds_its_engines_live_again() -> None:
    async with (
        scheduler() as running,
        SchedulerClient(running.address) as client,
        aclosing(client.watch()) as tables,
        leader(running.address, "a"),
    ):
        await until(tables, {"a"})
        os.kill(running.process.pid, signal.SIGSTOP)
        with pytest.raises(SchedulerUnavailable, match="DEADLINE_EXCEEDED"):
            await client.schedule([pb.ScheduleItem(model="small")], timeout_s=0.2)
        os.kill(running.process.pid, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            while await chosen(client) != {"a"}:
                await anext(tables)


async def test_sigterm_ends_with_code_0_while_streams_are_open() -> None:
    async with scheduler() as running, SchedulerClient(running.address) as client, leader(running.address, "a"):
        async with aclosing(client.watch()) as tables:
            await until(tables, {"a"})
        running.process.send_signal(signal.SIGTERM)
        assert (await running.ended())[0] == 0


async def test_a_taken_port_is_exit_code_2_and_one_line() -> None:
    async with scheduler() as first, scheduler("--address", first.address, wait=False) as second:
        code, said = await second.ended()
        assert code == 2, said
        assert f"can't listen on {first.address}" in said
