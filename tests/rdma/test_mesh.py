"""A whole mesh whose prompts, tokens and KV blocks move by RDMA alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.cli.mesh.plan import MeshOptions
from services.kvstore.client import StoreClient, StoreStats
from tests.mesh.harness import Client, client
from tests.rdma.mesh_by_rdma import mapped_files, mesh_by_rdma, needs_cable

pytestmark = [needs_cable, pytest.mark.model]

REQUESTS = 200
AT_ONCE = 16
LENGTHS = (3, 7, 12)
WORDS = (" the", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", ".")
"""Of the synthetic engine, by a token's position."""
PROMPT = "one two three four five six seven eight nine ten " * 30


@pytest.fixture
async def c(tmp_path: Path) -> AsyncIterator[Client]:
    async with mesh_by_rdma(tmp_path, MeshOptions(engine="synthetic", rate=200)) as running, client(running) as made:
        yield made


async def test_prompts_tokens_and_blocks(c: Client) -> None:
    """One mesh for all of it: an emulated machine takes long to start one."""
    await two_hundred_requests(c)
    the_front_end_maps_no_ring(c)
    await blocks_come_back_from_the_store(c)


async def two_hundred_requests(c: Client) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        length = LENGTHS[number % len(LENGTHS)]
        async with places:
            answer = await c.complete(f"{number} " * (1 + number % 50), max_tokens=length, ignore_eos=True)
        assert (answer.finish, (answer.usage or {}).get("completion_tokens")) == ("length", length), answer
        begin = (answer.usage or {})["prompt_tokens"]
        assert answer.text == "".join(WORDS[(begin + i) % len(WORDS)] for i in range(length))

    async with asyncio.TaskGroup() as group:
        for number in range(REQUESTS):
            group.create_task(one(number))
    await c.until_idle(60)


def the_front_end_maps_no_ring(c: Client) -> None:
    maps = {name: mapped_files(child.pid) for name, child in c.mesh.children.items()}
    mine = {name: {path for path in files if "/hostless." in path} for name, files in maps.items()}
    assert not mine["tokenizer"]
    assert any("/hostless.ring." in path for path in mine["gpu_backend"])
    assert not any("/hostless.kvstore." in path for path in mine["gpu_backend"])
    assert not any("/hostless.ring." in path or "/hostless.kv." in path for path in mine["kvstore"])
    assert any("uverbs" in path for path in maps["tokenizer"])


async def blocks_come_back_from_the_store(c: Client) -> None:
    fresh = await c.complete(PROMPT, max_tokens=5, ignore_eos=True)
    assert fresh.finish == "length"
    before = await stats(c)

    async def stored() -> bool:
        return (await stats(c)).blocks > 0

    await c.until("the prompt's blocks are stored", stored, 60)
    await c.until_idle(60)
    await c.mesh.kill("gpu_backend")
    await c.mesh.restart("gpu_backend")

    async def works() -> bool:
        return (await c.complete("Hi", max_tokens=1)).finish == "length"

    await c.until("the new engine serves", works, 120)
    again = await c.complete(PROMPT, max_tokens=5, ignore_eos=True)
    assert (again.text, again.finish) == (fresh.text, "length")
    assert (await stats(c)).blocks_read > before.blocks_read
    the_front_end_maps_no_ring(c)


async def stats(c: Client) -> StoreStats:
    async with StoreClient(c.mesh.plans["kvstore"].address) as store:
        return await store.stats()
