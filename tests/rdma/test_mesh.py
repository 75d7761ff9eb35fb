"""A whole mesh whose prompts, tokens and KV blocks move by RDMA alone, and what it does while the cable suffers.

One mesh for all of it: an emulated machine takes a minute to start one.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.cli.mesh.plan import MeshOptions
from services.kvstore.client import StoreClient, StoreStats, StoreUnavailable
from tests.mesh.harness import Answer, Client
from tests.rdma.cable import cut, netem
from tests.rdma.mesh_by_rdma import maps_a_device, mesh_by_rdma, needs_cable, open_files, patient_client, regions_mapped

pytestmark = [needs_cable, pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

AT_ONCE = 16
LENGTHS = (3, 7, 12)
WORDS = (" the", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", ".")
"""Of the synthetic engine, by a token's position."""
PROMPT = "one two three four five six seven eight nine ten " * 30
DEADLINE_S = 90.0
CUT_S = 5.0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def c(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    options = MeshOptions(engine="synthetic", rate=30)
    async with mesh_by_rdma(tmp_path_factory.mktemp("mesh"), options) as running, patient_client(running) as patient:
        await patient.until_it_serves(DEADLINE_S)
        yield patient


async def test_two_hundred_requests_are_right(c: Client) -> None:
    await crowd(c, 200)


async def test_the_front_end_maps_no_ring(c: Client) -> None:
    await crowd(c, 1)
    only_owners_map_regions(c)
    assert maps_a_device(c.mesh.children["tokenizer"].pid)


@pytest.mark.parametrize(
    "words",
    [("loss", "2%"), ("delay", "10ms", "5ms"), ("duplicate", "10%")],
    ids=lambda words: words[0],
)
async def test_requests_on_a_bad_cable_are_right(c: Client, words: tuple[str, ...]) -> None:
    with netem(*words):
        await crowd(c, 24)


async def test_a_cable_that_is_cut_for_five_seconds(c: Client) -> None:
    """Requests under way complete, or fail by their deadline; then all is as it was."""
    await crowd(c, 8)
    pairs, files = queue_pairs(), {name: open_files(child.pid) for name, child in c.mesh.children.items()}
    flowing = asyncio.Event()

    async def long(number: int) -> Answer:
        return await c.complete(f"{number}", max_tokens=250, ignore_eos=True, on_text=lambda _: flowing.set())

    async with asyncio.timeout(DEADLINE_S):
        running = [asyncio.ensure_future(long(number)) for number in range(8)]
        await flowing.wait()
        with cut():
            await asyncio.sleep(CUT_S)
        answers = await asyncio.gather(*running)
    for answer in answers:
        assert answer.ended or answer.status == 503, answer
        if answer.finish is not None:
            assert right(answer, 250)

    await c.until_it_serves(DEADLINE_S)
    await crowd(c, 8)

    async def as_before() -> bool:
        return queue_pairs() <= pairs and all(
            open_files(child.pid) <= files[name] + 4 for name, child in c.mesh.children.items()
        )

    await c.until("no queue pair and no file is left over", as_before, 60)


async def test_blocks_come_back_from_the_store(c: Client) -> None:
    fresh = await c.complete(PROMPT, max_tokens=5, ignore_eos=True)
    assert right(fresh, 5)

    async def stored() -> bool:
        return (found := await stats(c)) is not None and found.blocks > 0

    await c.until("the prompt's blocks are stored", stored, 60)
    await c.until_idle(60)
    await c.mesh.kill("gpu_backend")
    await c.mesh.restart("gpu_backend")
    await c.until_it_serves(DEADLINE_S)

    async def read() -> bool:  # a load that is late counts as a miss, so ask again
        again = await c.complete(PROMPT, max_tokens=5, ignore_eos=True)
        assert right(again, 5)
        return (again.usage or {})["prompt_tokens_details"]["cached_tokens"] > 0

    await c.until("blocks come from the store", read, DEADLINE_S)
    assert (found := await stats(c)) is None or found.blocks_read > 0
    only_owners_map_regions(c)


def only_owners_map_regions(c: Client) -> None:
    maps = regions_mapped(c.mesh)
    assert any(name.startswith("hostless.ring.") for name in maps["gpu_backend"])
    assert not any(name.startswith("hostless.kvstore.") for name in maps.pop("gpu_backend"))
    assert all(name.startswith("hostless.kvstore.") for name in maps.pop("kvstore"))
    assert not any(maps.values())


async def crowd(c: Client, requests: int) -> None:
    """So many requests, some at once, each with the right tokens; afterwards no slot is in use."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        length = LENGTHS[number % len(LENGTHS)]
        async with places:
            answer = await c.complete(f"{number} " * (1 + number % 50), max_tokens=length, ignore_eos=True)
        assert right(answer, length), answer

    async with asyncio.TaskGroup() as group:
        for number in range(requests):
            group.create_task(one(number))
    await c.until_idle(60)


def right(answer: Answer, length: int) -> bool:
    usage = answer.usage or {}
    begin = usage.get("prompt_tokens", 0)
    text = "".join(WORDS[(begin + i) % len(WORDS)] for i in range(length))
    return (answer.finish, usage.get("completion_tokens"), answer.text) == ("length", length, text)


def queue_pairs() -> int:
    """Of reliable connections, on both devices."""
    listed = subprocess.run(
        ["rdma", "-j", "resource", "show", "qp"], capture_output=True, check=True, timeout=10
    ).stdout
    return sum(entry.get("type") == "RC" for entry in json.loads(listed))


async def stats(c: Client) -> StoreStats | None:
    """None: the store did not answer in time."""
    async with StoreClient(c.mesh.plans["kvstore"].address) as store:
        try:
            return await store.stats()
        except StoreUnavailable:
            return None
