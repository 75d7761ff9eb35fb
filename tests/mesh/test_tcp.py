"""A whole mesh whose prompts, tokens and KV blocks move by transport tcp alone."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.cli.mesh.plan import MeshOptions
from services.fabric.region import MemoryRegion
from services.fabric.tcp.region import SILENCE_S
from services.fabric.transports import open_region
from tests.mesh.baseline import stats
from tests.mesh.harness import PATIENT, Client, client, mesh

pytestmark = pytest.mark.model

REQUESTS = 50
OWNERS = {
    "HOSTLESS_GPU_BACKEND_TRANSPORT": "tcp",
    "HOSTLESS_KVSTORE_TRANSPORT": "tcp",
    "HOSTLESS_GPU_BACKEND_KV_COPIES": "loopback",  # blocks enter and leave pages by it too (D7)
    "HOSTLESS_TOKENIZER_KV_LOOKUP_S": PATIENT["HOSTLESS_TOKENIZER_KV_LOOKUP_S"],
}
WORDS = (" the", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", ".")
"""Of the synthetic engine, by a token's position."""
PROMPT = "one two three four five six seven eight nine ten " * 30


@pytest.fixture
async def c(tmp_path: Path) -> AsyncIterator[Client]:
    options = MeshOptions(engine="synthetic", rate=200)
    async with mesh(tmp_path, options, **OWNERS) as running, client(running) as made:
        yield made


def others_regions(pid: int) -> set[str]:
    """Names of the regions of others that a process maps. (Its own were nameless when it mapped them.)"""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.rpartition("/hostless.")[2] for line in lines if "/hostless." in line.rpartition(" ")[2]}


def test_a_mapped_region_would_be_seen(tmp_path: Path) -> None:
    with MemoryRegion.create("ring.mine", 64, directory=tmp_path) as region:
        assert "ring.mine" not in others_regions(os.getpid())
        remote = open_region(region.descriptor())
        assert "ring.mine" in others_regions(os.getpid())
        remote.close()
        assert "ring.mine" not in others_regions(os.getpid())


def nobody_maps_others(c: Client) -> None:
    for name, child in c.mesh.children.items():
        assert not others_regions(child.pid), name


async def test_prompts_and_tokens(c: Client) -> None:
    async def one(number: int) -> None:
        length = 3 + number % 10
        answer = await c.complete(f"{number} " * (1 + number % 40), max_tokens=length, ignore_eos=True)
        assert (answer.finish, (answer.usage or {}).get("completion_tokens")) == ("length", length), answer
        begin = (answer.usage or {})["prompt_tokens"]
        assert answer.text == "".join(WORDS[(begin + i) % len(WORDS)] for i in range(length))

    async with asyncio.TaskGroup() as group:
        for number in range(REQUESTS):
            group.create_task(one(number))
    await c.until_idle()
    nobody_maps_others(c)


async def test_blocks_come_back_from_the_store(c: Client) -> None:
    fresh = await c.complete(PROMPT, max_tokens=5, ignore_eos=True)
    assert fresh.finish == "length"

    async def stored() -> bool:
        return (await stats(c)).blocks >= 4

    await c.until("the prompt's blocks are stored", stored)
    await c.until_idle()
    before = (await stats(c)).blocks_read
    await c.mesh.kill("gpu_backend")
    await c.mesh.restart("gpu_backend")
    await c.until_it_serves()
    again = await c.complete(PROMPT, max_tokens=5, ignore_eos=True)
    assert (again.text, again.finish) == (fresh.text, "length")
    assert (await stats(c)).blocks_read > before
    nobody_maps_others(c)


async def test_one_frozen_engine_delays_no_stream_of_another(tmp_path: Path) -> None:
    """Streams are far longer than the test: none is over before the engine freezes, however late all this goes."""
    options = MeshOptions(engine="synthetic", engines=2, rate=50, kvstore=False)
    said, since_then = [""] * 8, [0] * 8

    def heard(number: int, text: str) -> None:
        said[number] += text
        since_then[number] += text.count(" ")  # tokens: a client that is late gets several at once

    async with mesh(tmp_path, options, HOSTLESS_GPU_BACKEND_TRANSPORT="tcp") as running, client(running) as c:
        streams = [
            asyncio.create_task(
                c.complete(f"{i}", max_tokens=6000, ignore_eos=True, on_text=lambda text, i=i: heard(i, text))  # type: ignore[misc]
            )
            for i in range(len(said))
        ]

        async def go_on(streams_of_all: int) -> bool:
            assert not [stream for stream in streams if stream.done()]
            return sorted(since_then)[-streams_of_all] > 20

        async def moved() -> bool:
            return '"moved"' in running.log("tokenizer")

        await c.until("every stream has begun", lambda: go_on(len(streams)))
        running.signal("gpu_backend-0", signal.SIGSTOP)
        frozen = time.monotonic()
        since_then[:] = [0] * len(since_then)
        await c.until("half of the streams, those of the other engine, go on", lambda: go_on(len(streams) // 2))
        assert not await moved() or time.monotonic() - frozen > SILENCE_S, "the front end waits for the frozen engine"
        await c.until("its streams move", moved)
        since_then[:] = [0] * len(since_then)
        await c.until("every stream goes on", lambda: go_on(len(streams)))
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)
        for text in said:
            assert text in "".join(WORDS) * 1000, "no token is lost, or said twice"


async def test_an_engine_that_freezes_and_dies_under_requests(c: Client) -> None:
    """Its streams wait for an answer that does not come, but no longer than they may; later requests work."""
    asked = [asyncio.create_task(c.complete("Hello", max_tokens=400, ignore_eos=True)) for _ in range(5)]

    async def under_way() -> bool:
        return bool(await c.busy_slots())

    await c.until("requests are under way", under_way)
    c.mesh.signal("gpu_backend", signal.SIGSTOP)
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*asked)
    assert all(answer.ended for answer in answers)
    await c.mesh.kill("gpu_backend")
    await c.mesh.restart("gpu_backend")
    await c.until_it_serves()
