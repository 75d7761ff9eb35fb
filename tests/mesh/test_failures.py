"""When things break (docs/architecture.md): each row, with a real process killed or frozen.

The synthetic engine's tokens depend only on their position, so that a stream which moved to
another engine can be compared with one that nothing disturbed.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.cli.mesh.plan import MeshOptions
from tests.mesh.harness import SHORT_LEASES, Answer, Client, Mesh, client, mesh

pytestmark = pytest.mark.model

TOKENS = 150
LONG = 500  # ten seconds: it is still under way when the metrics have told where


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Client]:
    options = MeshOptions(engine="synthetic", rate=50)
    async with mesh(tmp_path, options, **SHORT_LEASES) as running, client(running) as c:
        yield c


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Client]:
    options = MeshOptions(engine="synthetic", rate=50, engines=2)
    async with mesh(tmp_path, options, **SHORT_LEASES) as running, client(running) as c:
        yield c


class Started:
    """A stream under way: `flowing` is set once some text has come."""

    def __init__(self, c: Client, tokens: int = TOKENS, **body: object) -> None:
        self.flowing = asyncio.Event()
        ask = c.complete(on_text=lambda _: self.flowing.set(), max_tokens=tokens, ignore_eos=True, **body)
        self.task: asyncio.Task[Answer] = asyncio.ensure_future(ask)

    async def until_flowing(self) -> None:
        async with asyncio.timeout(60):
            await self.flowing.wait()

    async def end(self) -> Answer:
        async with asyncio.timeout(90):
            return await self.task


async def works(c: Client) -> bool:
    answer = await c.complete(max_tokens=3, ignore_eos=True)
    return answer.finish == "length"


async def serving_engine(m: Mesh, c: Client) -> str:
    """Name of the engine that runs the one request there is."""
    engines = [name for name in m.plans if name.startswith("gpu_backend")]
    found: list[str] = []

    async def running() -> bool:
        for name, value in (await c.metrics()).items():
            if name.startswith("slot_state{") and 'state="decode_processing"' in name and value:
                found.extend(engine for engine in engines if f'"{engine}"' in name)
        return bool(found)

    await c.until("one engine shows the request", running)
    return found[0]


@pytest.mark.parametrize("after_first_token", [False, True])
async def test_client_gone(one: Client, after_first_token: bool) -> None:
    prompt = "word " * 200
    stream = Started(one, prompt=prompt)
    if after_first_token:
        await stream.until_flowing()
    stream.task.cancel()
    await one.until_idle()
    assert await works(one)


async def test_gateway_killed(one: Client) -> None:
    stream = Started(one)
    await stream.until_flowing()
    await one.mesh.kill("gateway")
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever aiohttp calls a cut connection
        await stream.end()
    await one.mesh.restart("gateway")
    await one.until_idle()
    assert await works(one)


async def test_tokenizer_killed(one: Client) -> None:
    stream = Started(one)
    await stream.until_flowing()
    await one.mesh.kill("tokenizer")
    answer = await stream.end()
    assert answer.error is not None
    assert answer.finish is None
    await one.until_idle()  # the lease ended and the engine drained its slots
    await one.mesh.restart("tokenizer")
    await one.until("serving again", lambda: works(one))


async def test_tokenizer_frozen(one: Client) -> None:
    stream = Started(one)
    await stream.until_flowing()
    one.mesh.signal("tokenizer", signal.SIGSTOP)
    await one.until_idle()
    one.mesh.signal("tokenizer", signal.SIGCONT)
    answer = await stream.end()
    assert answer.ended
    await one.until("serving again", lambda: works(one))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_engine_lost_and_another_goes_on(two: Client, how: signal.Signals) -> None:
    undisturbed = await Started(two, LONG).end()
    stream = Started(two, LONG)
    await stream.until_flowing()
    victim = await serving_engine(two.mesh, two)
    two.mesh.signal(victim, how)
    answer = await stream.end()
    assert (answer.text, answer.finish) == (undisturbed.text, "length")
    assert answer.usage == undisturbed.usage
    for _ in range(4):  # nothing is sent to the lost one
        assert await works(two)
    await two.until_idle()


async def test_only_engine_killed(one: Client) -> None:
    stream = Started(one)
    await stream.until_flowing()
    await one.mesh.kill("gpu_backend")
    await one.mesh.restart("gpu_backend")
    answer = await stream.end()
    assert answer.ended
    await one.until("serving again", lambda: works(one))
    await one.until_idle()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_kvstore_lost(one: Client, how: signal.Signals) -> None:
    prompt = "word " * 300
    before = await one.complete(prompt, max_tokens=20, ignore_eos=True)
    one.mesh.signal("kvstore", how)
    after = await one.complete(prompt, max_tokens=20, ignore_eos=True)
    assert (after.text, after.finish) == (before.text, "length")
    await one.until_idle()


async def test_global_scheduler_killed(two: Client) -> None:
    stream = Started(two)
    await stream.until_flowing()
    await two.mesh.kill("global_scheduler")
    assert (await stream.end()).finish == "length"
    for _ in range(4):
        assert await works(two)
    await two.mesh.restart("global_scheduler")
    await two.until_idle()
    assert await works(two)


async def test_sigterm_finishes_what_runs(one: Client) -> None:
    stream = Started(one)
    await stream.until_flowing()
    one.mesh.signal("gateway", signal.SIGTERM)
    assert (await stream.end()).finish == "length"
    assert await asyncio.wait_for(one.mesh.children["gateway"].wait(), 60) == 0
