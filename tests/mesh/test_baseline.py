"""After a crowd of requests with random disconnects, everything is back where it was."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from services.cli.mesh.plan import MeshOptions
from tests.mesh.harness import Client, client, mesh

pytestmark = [pytest.mark.model, pytest.mark.slow]  # a thousand requests, about 40 s

REQUESTS = 1000
AT_ONCE = 64


@pytest.fixture
async def fast(tmp_path: Path) -> AsyncIterator[Client]:
    options = MeshOptions(engine="synthetic", rate=200)
    async with mesh(tmp_path, options) as running, client(running) as c:
        yield c


async def test_random_disconnects_leave_nothing_behind(fast: Client) -> None:
    chance = random.Random(1)
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with places:
            length, patience = chance.randrange(1, 120), chance.choice([0.005, 0.05, 0.3, 30])
            ask = fast.complete(f"{number} " * chance.randrange(1, 300), max_tokens=length, ignore_eos=True)
            try:
                answer = await asyncio.wait_for(ask, patience)
            except TimeoutError:
                return
            assert (answer.finish, (answer.usage or {})["completion_tokens"]) == ("length", length)

    async def crowd(count: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(number))
        await fast.until_idle()
        await fast.until("all pages free", pages_free)

    async def pages_free() -> bool:  # pages of finished requests are held until the store has their blocks
        return await usage(fast) == 0

    await crowd(200)  # warm: pools and caches have grown to what they need
    before = {name: memory_kb(child.pid) for name, child in fast.mesh.children.items()}
    await crowd(REQUESTS)

    async def store_free() -> bool:
        return await store_gauges(fast) == {"leases": 0, "tickets": 0}

    await fast.until("no lease and no ticket left in the store", store_free)
    for name, child in fast.mesh.children.items():
        grown = memory_kb(child.pid) - before[name]
        assert grown < 24 * 1024, f"{name} grew by {grown} kB over {REQUESTS} requests"


async def usage(c: Client) -> float:
    return sum(value for name, value in (await c.metrics()).items() if name.startswith("kv_cache_usage_perc"))


async def store_gauges(c: Client) -> dict[str, float]:
    """The store's own count of leases and tickets."""
    from hostless.v1 import kvstore_pb2, kvstore_pb2_grpc
    from services.common import rpc

    async with rpc.channel(c.mesh.plans["kvstore"].address) as channel:
        stats = await kvstore_pb2_grpc.KvStoreStub(channel).Stats(kvstore_pb2.StatsRequest())
    return {"leases": stats.leases, "tickets": stats.tickets}


def memory_kb(pid: int) -> int:
    """Memory of a process beside files and shared regions, which have a fixed size but count as they are touched."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
    raise AssertionError("no Anonymous")


async def test_two_hundred_thousand_characters_disturb_nobody(fast: Client) -> None:
    """A long prompt may be refused as too long, and is no trouble for a stream beside it."""
    flowing = asyncio.Event()
    stream = asyncio.ensure_future(fast.complete(max_tokens=400, ignore_eos=True, on_text=lambda _: flowing.set()))
    async with asyncio.timeout(60):
        await flowing.wait()
    url = fast.mesh.url + "/v1/completions"
    body = {"model": await fast.model(), "prompt": "wörd 123 " * 22_222, "max_tokens": 1}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as refused:
        assert refused.status == 400
        assert (await refused.json())["error"]["code"] == "context_length_exceeded"
    answer = await stream
    assert (answer.finish, (answer.usage or {})["completion_tokens"]) == ("length", 400)
