"""Blocks held in engines' memory: a second turn goes where they are and reads nothing from storage; and whoever forgets
them, the tokens are those of one engine without a store."""

import asyncio
import re
from pathlib import Path

import pytest

from services.cli.mesh.plan import MeshOptions
from tests.mesh.baseline import at_baseline, engines, moved, page, stats, value
from tests.mesh.harness import PATIENT, SHORT_LEASES, Client, client, mesh
from tests.mesh.one_engine import NEW_TOKENS, ask, one_engine, prompt
from tests.mesh.tiny_model import NAME, make_tiny_model

pytestmark = pytest.mark.slow  # meshes of several engines, each of which loads torch

FIRST, SECOND, THIRD = 200, 300, 420  # tokens of a conversation's prompts, each with the one before it
HELD = {"HOSTLESS_GPU_BACKEND_HELD_BYTES": "64MiB", **PATIENT}
KNOWN = re.compile(r'^hostless:scheduler_engine_held_blocks\{engine="[^"]*"\} (\S+)$', re.M)


@pytest.fixture
def block_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("HOSTLESS_MODELS", str(tmp_path / "models"))
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    return make_tiny_model(tmp_path / "models")


async def right(folder: Path, conversations: int) -> dict[str, str]:
    lengths = (FIRST, SECOND, THIRD)
    prompts = {
        f"{salt} {length}": (prompt(salt, length), NEW_TOKENS) for salt in range(conversations) for length in lengths
    }
    return await one_engine(folder, prompts)


async def reused(c: Client) -> dict[str, float]:
    return {name: await value(c, name, "kv_blocks_reused") for name in engines(c)}


async def known(c: Client, blocks: int) -> None:
    """All is stored, and the scheduler has heard who holds how many blocks."""

    async def told() -> bool:
        counts = [float(count) for count in KNOWN.findall(await page(c, "global_scheduler"))]
        return sum(counts) == blocks and len(counts) == len(engines(c))

    await c.until(f"{blocks} blocks are known to be held", told)
    await at_baseline(c)


async def test_a_second_turn_is_placed_where_it_is_held(tmp_path: Path, block_bytes: int) -> None:
    said = await right(tmp_path / "one", 2)
    options = MeshOptions(model=NAME, engines=2, threads=1)
    async with mesh(tmp_path / "many", options, **HELD, **SHORT_LEASES) as running, client(running) as c:

        async def turn(salt: int, length: int) -> None:
            answer = await ask(c, prompt(salt, length))
            assert (answer.text, answer.error) == (said[f"{salt} {length}"], None)

        await asyncio.gather(turn(0, FIRST), turn(1, FIRST))  # so on an engine each
        await known(c, 2 * (FIRST // 64))
        assert all([await value(c, name, "finished") for name in engines(c)])
        for salt in (1, 0):
            await turn(salt, SECOND)
            await known(c, (2 - salt) * (SECOND // 64) + salt * (FIRST // 64))
        assert (await stats(c)).blocks_read == 0
        assert list((await reused(c)).values()) == [FIRST // 64, FIRST // 64]
        links = await moved(c)
        assert links["held_to_prefill_pages"] == 2 * (FIRST // 64) * block_bytes
        assert links["store_to_prefill_buffer"] == links["prefill_buffer_to_prefill_pages"] == 0

        await running.kill("global_scheduler")  # whose next life is told everything again
        await running.restart("global_scheduler")
        await known(c, 2 * (SECOND // 64))
        await turn(1, THIRD)
        assert (await stats(c)).blocks_read == 0

        for name in engines(c):  # which forget
            await running.kill(name)
            await running.restart(name)
        await known(c, 0)
        await turn(0, THIRD)
        assert (await stats(c)).blocks_read == SECOND // 64
        assert sum((await reused(c)).values()) == 0
        await at_baseline(c)


async def test_apart_the_decode_side_brings_what_it_holds(tmp_path: Path, block_bytes: int) -> None:
    said = await right(tmp_path / "one", 1)
    options = MeshOptions(model=NAME, prefill=1, decode=1, threads=1)
    async with mesh(tmp_path / "many", options, **HELD) as running, client(running) as c:
        for before, length in ((0, FIRST), (FIRST, SECOND), (SECOND, THIRD)):
            was = await moved(c)
            answer = await ask(c, prompt(0, length))
            assert (answer.text, answer.error) == (said[f"0 {length}"], None)
            now = await moved(c)
            pages, hit = -(-length // 64), before // 64
            assert {link: (now[link] - was[link]) // block_bytes for link in now if link != "pages_to_store"} == {
                "store_to_prefill_buffer": 0,
                "prefill_buffer_to_prefill_pages": 0,
                "held_to_prefill_pages": 0,
                "store_to_decode_buffer": 0,
                "held_to_decode_buffer": hit,
                "decode_buffer_to_prefill_pages": hit,
                "prefill_pages_to_decode_buffer": pages - hit,
                "decode_buffer_to_decode_pages": pages,
            }
            await known(c, length // 64)
        assert (await stats(c)).blocks_read == 0
