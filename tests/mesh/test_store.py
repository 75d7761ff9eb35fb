"""What lies under a request fails in the middle of it: the same tokens come, computed again.

The real model, greedily. Its engine is restarted before each request, so that what it knows of a prompt comes from the
store alone.
"""

import asyncio
import importlib.util
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from services.cli.mesh.plan import MeshOptions
from tests.kvstore.mooncake_master import master
from tests.mesh.baseline import stats
from tests.mesh.harness import Answer, Client, client, mesh

pytestmark = [pytest.mark.model, pytest.mark.slow]  # a mesh with the real model each, its engine started three times

PROMPT = "Once there was a lighthouse keeper who counted ships. " * 40
OPTIONS = MeshOptions(engine="torch")
LATE = {"HOSTLESS_TOKENIZER_KV_LOOKUP_S": "5"}  # for a busy machine; a frozen store is waited for so long

Hurt = Callable[[signal.Signals], Awaitable[None]]


async def ask(c: Client) -> Answer:
    return await c.complete(PROMPT, max_tokens=24, temperature=0)


async def forget(c: Client) -> None:
    """The engine starts anew, with nothing in its memory."""
    await c.until_idle()
    await c.mesh.kill("gpu_backend")
    await c.mesh.restart("gpu_backend")
    await c.until_it_serves()


async def same_tokens_whatever_fails(c: Client, hurt: Hurt) -> None:
    fresh = await ask(c)
    assert fresh.finish == "length"

    async def stored() -> bool:
        return (await stats(c)).blocks >= 5

    await c.until("the prompt's blocks are stored", stored)
    await forget(c)
    before = (await stats(c)).blocks_read
    loaded = await ask(c)
    assert loaded.text == fresh.text
    assert (await stats(c)).blocks_read > before, "the store was not used, so the rest shows nothing"
    await forget(c)
    await hurt(signal.SIGSTOP)  # whoever asks now waits
    asked = asyncio.create_task(ask(c))

    async def under_way() -> bool:
        return bool(await c.busy_slots()) or asked.done()

    await c.until("the request is under way", under_way)
    await hurt(signal.SIGKILL)
    async with asyncio.timeout(60):
        answer = await asked
    assert (answer.text, answer.finish) == (fresh.text, "length")
    assert (await ask(c)).text == fresh.text
    await c.until_idle()


async def test_the_store_itself(tmp_path: Path) -> None:
    async with mesh(tmp_path, OPTIONS, HOSTLESS_KVSTORE_ENGINE="local", **LATE) as running, client(running) as c:

        async def hurt(how: signal.Signals) -> None:
            running.signal("kvstore", how)

        await same_tokens_whatever_fails(c, hurt)


@pytest.mark.skipif(importlib.util.find_spec("mooncake") is None, reason="Mooncake is not installed")
async def test_the_pool_under_the_store(tmp_path: Path) -> None:
    with master(tmp_path / "master.log") as (address, process):
        environ = {
            **LATE,
            "HOSTLESS_KVSTORE_ENGINE": "mooncake",
            "HOSTLESS_KVSTORE_MOONCAKE_MASTER": address,
            "HOSTLESS_KVSTORE_MOONCAKE_SEGMENT_BYTES": str(256 << 20),
        }
        async with mesh(tmp_path, OPTIONS, **environ) as running, client(running) as c:

            async def hurt(how: signal.Signals) -> None:
                process.send_signal(how)

            await same_tokens_whatever_fails(c, hurt)
