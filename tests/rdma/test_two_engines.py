"""Prefill and decode apart, in a mesh by RDMA: a prompt's KV goes from engine to engine by layers, over queue pairs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.cli.mesh.plan import MeshOptions
from tests.mesh.harness import Client
from tests.mesh.test_two_engines import NEW_TOKENS, at_baseline, closed_form, moved, prompt, stats, value
from tests.mesh.tiny_model import NAME, make_tiny_model
from tests.rdma.mesh_by_rdma import maps_a_device, mesh_by_rdma, needs_cable, patient_client, regions_mapped

pytestmark = [needs_cable, pytest.mark.slow]  # two meshes with torch, in an emulated machine

CASES = ((63, 0), (129, 0), (130, 2))
"""Tokens of a prompt, and how many blocks of it the store has."""
DEADLINE_S = 120.0


@asynccontextmanager
async def by_rdma(folder: Path, options: MeshOptions) -> AsyncIterator[Client]:
    async with mesh_by_rdma(folder, options) as running, patient_client(running, NAME) as c:

        async def works() -> bool:
            return (await c.complete([5, 6, 7], max_tokens=2)).finish is not None

        await c.until("the mesh serves", works, DEADLINE_S)
        yield c


async def say(c: Client, tokens: list[int], new: int = NEW_TOKENS) -> str:
    answer = await c.complete(tokens, max_tokens=new, temperature=0, ignore_eos=True)
    assert (answer.finish, answer.error) == ("length", None)
    return answer.text


async def test_prompts_prefilled_on_one_device_and_decoded_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTLESS_MODELS", str(tmp_path / "models"))
    block_bytes = make_tiny_model(tmp_path / "models")
    for name in ("one", "apart"):
        (tmp_path / name).mkdir()
    async with by_rdma(tmp_path / "one", MeshOptions(model=NAME, threads=1, kvstore=False)) as c:
        reference = [await say(c, prompt(salt, length)) for salt, (length, _) in enumerate(CASES)]

    options = MeshOptions(model=NAME, prefill=1, decode=1, threads=1, policy="dualpath_round_robin")
    async with by_rdma(tmp_path / "apart", options) as c:
        for salt, (length, hit) in enumerate(CASES):
            tokens = prompt(salt, length)
            if hit:
                before = (await stats(c)).blocks
                await say(c, tokens[: 64 * hit + 1], 1)

                async def stored(most: int = before + hit) -> bool:
                    return (await stats(c)).blocks >= most

                await c.until(f"{hit} blocks are stored", stored, DEADLINE_S)
            bytes_before = await moved(c)
            assert await say(c, tokens) == reference[salt], (length, hit)
            closed_form(bytes_before, await moved(c), -(-length // 64), hit, block_bytes)
        await at_baseline(c)
        assert await value(c, "prefill-0", "kv_prompts_sent") >= len(CASES)
        for name in ("prefill-0", "decode-0"):
            assert maps_a_device(c.mesh.children[name].pid)
        nobody_maps_others(c)


def nobody_maps_others(c: Client) -> None:
    """A region is named after its owner."""
    for service, regions in regions_mapped(c.mesh).items():
        assert all(service in region for region in regions), (service, regions)
