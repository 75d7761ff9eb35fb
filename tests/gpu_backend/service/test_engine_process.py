"""A real engine process behind its ring: serving, leases, draining, kills, and errors at the start."""

import asyncio
import os
import signal
import urllib.request
from contextlib import aclosing
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hostless.v1 import scheduler_pb2
from services.common import rpc
from services.common.keys import block_keys, root_key
from services.fabric.errors import FabricError, StaleRegion
from services.fabric.ring import EngineState, Finish, RingOwner, SlotState
from services.fabric.ring.layout import kv_reads
from services.fabric.transports import open_region
from services.global_scheduler.client import SchedulerClient
from services.gpu_backend.client import EngineBusy, EngineClient, EngineUnavailable, LeaseEnded
from services.gpu_backend.service import NAME, EngineService
from services.kvstore.client import StoreClient
from tests.gpu_backend.service.front_end import WAIT_S, FrontEnd
from tests.gpu_backend.service.processes import engine, scheduler
from tests.processes import service
from tests.waiting import until

WORDS = [11, 22, 33, 44, 55]
FAST = ("--synthetic-words", ",".join(map(str, WORDS)), "--synthetic-tokens-per-s", "2000")
SLOW = ("--synthetic-tokens-per-s", "50")


def expected(prompt: list[int], count: int) -> list[int]:
    return [WORDS[(len(prompt) + i) % len(WORDS)] for i in range(count)]


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def scrape(address: str) -> str:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{address}/metrics", timeout=WAIT_S) as page:
        return str(page.read().decode())


async def table(client: SchedulerClient, wanted: int) -> scheduler_pb2.PlacementTable:
    """The first table with so many engines."""
    async with aclosing(client.watch()) as tables, asyncio.timeout(WAIT_S):
        async for found in tables:
            if len(found.engines) == wanted:
                return found
    raise AssertionError


async def test_prompts_in_tokens_out(tmp_path: Path) -> None:
    async with engine(tmp_path, *FAST) as running:
        client = EngineClient(running.address)
        one, two = await FrontEnd.attach(client), await FrontEnd.attach(client)
        prompts = [[7] * length for length in (1, 63, 64, 65, 300)]
        numbers = [(front_end, front_end.submit(p, 40), p) for p in prompts for front_end in (one, two)]
        for front_end, number, prompt in numbers:
            assert await front_end.finished(number) is Finish.LENGTH
            assert front_end.tokens(number) == expected(prompt, 40)
        assert one.ring.read_status().state is EngineState.SERVING
        await client.close()


async def test_health_reflects_readiness_and_status_says_what_the_engine_does(tmp_path: Path) -> None:
    async with (
        scheduler() as address,
        engine(tmp_path, *SLOW, "--report-ms", "20", "--idle-report-ms", "20", scheduler=address) as running,
        SchedulerClient(address) as mesh,
    ):
        (info,) = (await table(mesh, 1)).engines
        assert (info.address, info.model, info.page_tokens, info.max_context) == (running.address, "test", 64, 8192)
        assert info.kv_layout.startswith("synthetic/")
        async with rpc.channel(running.address) as channel, asyncio.timeout(WAIT_S):
            serving = health_pb2.HealthCheckResponse.SERVING
            stub = health_pb2_grpc.HealthStub(channel)
            while (await stub.Check(health_pb2.HealthCheckRequest())).status != serving:  # noqa: ASYNC110 - remote
                await asyncio.sleep(0.01)
        client = EngineClient(running.address)
        front_end = await FrontEnd.attach(client)
        front_end.submit([1] * 100, 1000)
        async with asyncio.timeout(WAIT_S):
            while (report := (await mesh.status()).engines[0].report).generated_tokens < 5:  # noqa: ASYNC110 - remote
                await asyncio.sleep(0.01)
        assert (report.requests, report.running, report.waiting) == (1, 1, 0)
        assert report.tokens > 100
        assert report.slot_states[SlotState.DECODE_PROCESSING] == 1
        assert report.free_pages < info.page_count
        await client.close()


async def test_metrics_tell_the_counters_of_the_core(tmp_path: Path) -> None:
    async with engine(tmp_path, *FAST, "--engine-id", "e", "--kvstore", "127.0.0.1:1") as running:
        front_end = await FrontEnd.attach(client := EngineClient(running.address))
        assert await front_end.finished(front_end.submit([1] * 100, 10)) is Finish.LENGTH
        page = await asyncio.to_thread(scrape, running.metrics)
        assert 'hostless:engine_prompt_tokens_total{engine="e"} 100.0' in page
        assert 'hostless:engine_generated_tokens_total{engine="e"} 10.0' in page
        assert 'hostless:engine_slot_state{engine="e",state="decode_completed"} 1.0' in page
        assert 'hostless:engine_front_end_leases{engine="e"} 1.0' in page
        assert 'hostless:engine_kv_cache_usage_perc{engine="e"} 0.0' in page
        assert 'hostless:engine_kv_blocks_stored_total{engine="e"} 0.0' in page
        await client.close()


async def test_a_front_end_that_falls_silent_is_drained_and_its_place_reused(tmp_path: Path) -> None:
    lease = ("--lease-ttl-ms", "1500", "--lease-grace-ms", "50")
    async with engine(tmp_path, *SLOW, *lease) as running:
        client = EngineClient(running.address)
        silent = await FrontEnd.attach(client, "silent")
        number = silent.submit([1], 5000)
        await until(lambda: silent.look(number)[2] > 0)
        await until(lambda: silent.look(number)[0] is SlotState.EMPTY)
        with pytest.raises(LeaseEnded, match="has ended; its requests were cancelled; attach anew"):
            await client.renew(silent.lease.lease_id)
        places = set()
        async with asyncio.timeout(WAIT_S):
            while silent.lease.front_end not in places:
                try:
                    places.add((await client.attach("next")).front_end)
                except EngineBusy:
                    await asyncio.sleep(0.02)
        await client.close()


async def test_a_renewed_lease_lasts_and_a_detached_one_ends_at_once(tmp_path: Path) -> None:
    async with engine(tmp_path, *SLOW, "--lease-ttl-ms", "1500") as running:
        client = EngineClient(running.address)
        front_end = await FrontEnd.attach(client)
        number = front_end.submit([1], 150)

        async def renew() -> None:
            while True:
                assert await client.renew(front_end.lease.lease_id) == 1.5
                await asyncio.sleep(0.05)

        renewing = asyncio.create_task(renew())
        assert await front_end.finished(number) is Finish.LENGTH  # 3 s, two leases
        renewing.cancel()
        second = front_end.submit([1], 5000)
        await until(lambda: front_end.look(second)[2] > 0)
        await client.detach(front_end.lease.lease_id)
        await client.detach(front_end.lease.lease_id)
        await until(lambda: front_end.look(second)[0] is SlotState.EMPTY)
        await client.close()


async def test_places_run_out_by_name(tmp_path: Path) -> None:
    async with engine(tmp_path) as running:
        client = EngineClient(running.address)
        shares = [await client.attach(str(i)) for i in range(RingOwner.front_ends)]
        assert len({(lease.front_end, lease.slot_begin, lease.token_begin) for lease in shares}) == 8
        with pytest.raises(EngineBusy, match="all 8 front-end places are taken: 8 leased"):
            await client.attach("ninth")
        await client.close()


async def test_sigterm_tells_the_scheduler_then_finishes_what_runs(tmp_path: Path) -> None:
    async with (
        scheduler() as address,
        engine(tmp_path, *SLOW, "--drain-s", "30", scheduler=address) as running,
        SchedulerClient(address) as mesh,
    ):
        await table(mesh, 1)
        client = EngineClient(running.address)
        front_end = await FrontEnd.attach(client)
        number = front_end.submit([1], 250)  # 5 s: it still runs when all that is seen
        await until(lambda: front_end.look(number)[2] > 0)
        running.process.send_signal(signal.SIGTERM)
        await table(mesh, 0)
        assert front_end.look(number)[0] is not SlotState.DECODE_COMPLETED
        assert (await mesh.status()).engines[0].live  # it was told, not found out
        with pytest.raises(EngineUnavailable, match="draining"):
            await client.attach("late")
        await until(lambda: front_end.ring.read_status().state is EngineState.DRAINING)
        late = front_end.submit([1], 10)
        assert await front_end.finished(late) is Finish.DRAINING
        assert await front_end.finished(number) is Finish.LENGTH
        assert len(front_end.tokens(number)) == 250
        front_end.release(number)
        front_end.release(late)
        code, said = await running.ended()
        assert code == 0, said
        assert "in part" not in said
        assert files(tmp_path) == []
        with pytest.raises(StaleRegion):
            front_end.region.verify()
        await client.close()


async def test_sigterm_does_not_wait_longer_than_its_grace(tmp_path: Path) -> None:
    async with engine(tmp_path, *SLOW, "--drain-s", "0.2") as running:
        front_end = await FrontEnd.attach(client := EngineClient(running.address))
        number = front_end.submit([1], 5000)
        await until(lambda: front_end.look(number)[2] > 0)
        running.process.send_signal(signal.SIGTERM)
        code, said = await running.ended()
        assert code == 0, said
        assert "drained in part" in said
        assert files(tmp_path) == []
        await client.close()


async def test_the_drain_call_waits_for_what_runs(tmp_path: Path) -> None:
    async with engine(tmp_path, *SLOW) as running:
        front_end = await FrontEnd.attach(client := EngineClient(running.address))
        short = front_end.submit([1], 10)
        endless = front_end.submit([1], 5000)
        await until(lambda: front_end.look(endless)[2] > 0)
        assert await client.drain(3.0) == 1
        assert front_end.look(short)[:2] == (SlotState.DECODE_COMPLETED, Finish.LENGTH)
        await client.close()


async def test_after_a_kill_the_next_start_has_a_new_epoch_and_old_descriptors_are_refused(tmp_path: Path) -> None:
    async with scheduler() as address, SchedulerClient(address) as mesh:
        name = ("--engine-id", "phoenix")
        async with engine(tmp_path, *SLOW, *name, scheduler=address) as first:
            (before,) = (await table(mesh, 1)).engines
            front_end = await FrontEnd.attach(old := EngineClient(first.address))
            front_end.submit([1], 5000)
            first.process.kill()
            await first.process.wait()
            await table(mesh, 0)
            await old.close()
        assert files(tmp_path) == [Path(front_end.lease.ring.address).name]
        async with engine(tmp_path, *FAST, *name, scheduler=address) as second:
            (after,) = (await table(mesh, 1)).engines
            assert after.epoch != before.epoch
            with pytest.raises(StaleRegion):
                front_end.region.verify()
            with pytest.raises(StaleRegion):
                front_end.ring.read_words()
            with pytest.raises(FabricError):
                open_region(front_end.lease.ring)
            again = await FrontEnd.attach(client := EngineClient(second.address))
            assert again.ring.epoch == after.epoch
            number = again.submit([1], 5)
            assert await again.finished(number) is Finish.LENGTH
            await client.close()


async def test_a_frozen_engine_leaves_the_table_and_comes_back(tmp_path: Path) -> None:
    async with (
        scheduler(lease_s=1) as address,
        engine(tmp_path, *FAST, scheduler=address) as running,
        SchedulerClient(address) as mesh,
    ):
        await table(mesh, 1)
        os.kill(running.process.pid, signal.SIGSTOP)
        await table(mesh, 0)
        os.kill(running.process.pid, signal.SIGCONT)
        await table(mesh, 1)


async def test_an_engine_that_does_not_get_on_takes_nothing_until_it_does(tmp_path: Path) -> None:
    two_seconds_a_step = ("--synthetic-tokens-per-s", "0.5", "--patience-s", "0.5")
    async with (
        scheduler() as address,
        engine(tmp_path, *two_seconds_a_step, scheduler=address) as running,
        SchedulerClient(address) as mesh,
    ):
        await table(mesh, 1)
        front_end = await FrontEnd.attach(client := EngineClient(running.address))
        front_end.submit([1], 2)
        await table(mesh, 0)
        with pytest.raises(EngineUnavailable, match="none of 1 requests has got on"):
            await client.attach("late")
        await table(mesh, 1)
        await client.close()


async def test_an_engine_whose_step_never_ends_says_so_and_ends(tmp_path: Path) -> None:
    async with engine(tmp_path, "--synthetic-tokens-per-s", "0.01", "--step-limit-s", "0.3") as running:
        front_end = await FrontEnd.attach(client := EngineClient(running.address))
        number = front_end.submit([1], 3)
        assert await front_end.finished(number) is Finish.ENGINE_ERROR
        code, said = await running.ended()
        assert (code, "a step did not end in time" in said) == (1, True), said
        assert files(tmp_path) == []
        await client.close()


async def test_the_next_turn_loads_what_the_first_one_computed_even_from_another_engine(tmp_path: Path) -> None:
    prompt = list(range(1, 301))
    async with (
        scheduler() as address,
        service("kvstore", "--path", str(tmp_path / "store"), HOSTLESS_SHM=str(tmp_path)) as store,
        StoreClient(store.address) as blocks,
        SchedulerClient(address) as mesh,
    ):
        async with engine(tmp_path, *FAST, "--kvstore", store.address, scheduler=address) as first:
            (info,) = (await table(mesh, 1)).engines
            root = root_key(info.kv_layout, "")
            front_end = await FrontEnd.attach(client := EngineClient(first.address))
            number = front_end.submit(prompt, 100, kv_root=root)
            assert await front_end.finished(number) is Finish.LENGTH
            turn = prompt + front_end.tokens(number)
            front_end.release(number)
            first.process.send_signal(signal.SIGTERM)  # what is on its way to the store gets there
            code, said = await first.ended()
            assert (code, "in part" in said) == (0, False), said
            await client.close()
        keys = block_keys(root, turn[:-1])
        hit = await blocks.lookup(keys, ttl_s=30)
        assert hit.hit == len(keys) == 6
        async with engine(tmp_path, *FAST, "--kvstore", store.address) as second:
            front_end = await FrontEnd.attach(client := EngineClient(second.address))
            number = front_end.submit(turn, 10, kv_root=root, cached=64 * hit.hit, kv_reads=kv_reads(0, hit.hit))
            assert await front_end.finished(number) is Finish.LENGTH
            assert front_end.cached(number) == 64 * len(keys)
            assert front_end.tokens(number) == expected(turn, 10)
            await client.close()


async def test_nothing_is_leased_while_the_engine_loads() -> None:
    loading = EngineService()
    async with rpc.serve("127.0.0.1:0", loading.register, [NAME], grace_s=0, serving=False) as server:
        client = EngineClient(f"127.0.0.1:{server.port}")
        with pytest.raises(EngineUnavailable, match="loading"):
            await client.attach("early")
        await client.close()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--engine", "torch", "--model", "no-such-model"), ["no-such-model", "hostless pull"]),
        (("--kv-pages", "9999999999"), ["9999999999 KV pages need", "bytes", "available"]),
        (("--max-context", "0", "--lanes", "100"), ["lanes: 100 is more than the 64 slots"]),
        (("--engine", "gpu"), ["engine: 'gpu' is not one of torch, cuda, synthetic"]),
        (("--scheduler-kind", "device"), ["scheduler-kind: device is for engine cuda, not synthetic"]),
        (("--synthetic-words", "1,x"), ["synthetic-words", "'x'"]),
        (("--address", "127.0.0.1:99999"), ["address: '127.0.0.1:99999' is not host:port"]),
        (("--kvstore", "127.0.0.1:1", "--receive-buffer-bytes", "9"), ["receive-buffer-bytes: 9 hold no block"]),
    ],
)
async def test_what_is_wrong_at_the_start_is_one_line_and_exit_code_2(
    tmp_path: Path, flags: tuple[str, ...], words: list[str]
) -> None:
    async with engine(tmp_path, *flags, wait=False) as running:
        code, said = await running.ended()
        assert code == 2, said
        (line,) = [line for line in said.splitlines() if line.startswith("hostless gpu_backend:")]
        assert all(word in line for word in words), line
        assert files(tmp_path) == []


async def test_a_second_engine_of_the_same_name_is_refused(tmp_path: Path) -> None:
    async with engine(tmp_path, "--engine-id", "twin"), engine(tmp_path, "--engine-id", "twin", wait=False) as second:
        code, said = await second.ended()
        assert (code, "engine-id: 'twin' is taken" in said) == (2, True), said
