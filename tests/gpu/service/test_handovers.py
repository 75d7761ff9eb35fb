"""Prompts that a GPU prefills and another engine decodes: one engine's tokens, by blocks and by layers (D1-D3, D6)."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import tests.gpu.engine.hardware  # noqa: F401
from services.fabric.hosting import RegionHost
from services.gpu_backend.engines.offline import Run, generate
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.kv_agent import AgentSettings, Peers
from services.gpu_backend.layers import Pass
from services.gpu_backend.models.registry import LoadedModel
from services.kvstore.client import StoreClient
from tests.gpu.service.sides import CONFIG, CONTEXT, ServedSide, cpu_kit, gpu_kit, model
from tests.gpu_backend.kv_agent import one_by_one
from tests.gpu_backend.kv_agent.one_by_one import OneByOne, Straight
from tests.gpu_backend.kv_agent.test_layers import Fetches
from tests.processes import service
from tests.waiting import until

pytestmark = pytest.mark.gpu

NEW = 6
KINDS = ("host", "device")
HITS = ((63, 0), (65, 1), (200, 3), (1000, 9), (3000, 30), (3500, 0))
"""Tokens of a prompt, and blocks of it that are stored."""


@pytest.fixture(autouse=True)
def shm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In memory: a GPU maps no file of a disk."""
    monkeypatch.setattr(one_by_one, "CONTEXT", CONTEXT)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setenv("HOSTLESS_SHM", folder)
        yield Path(folder)


class Alone:
    """What one engine says."""

    def __init__(self) -> None:
        self._engine = TorchEngine(LoadedModel(model("cpu"), "drawn"), TorchSettings())
        self._engine.allocate(CONTEXT // 64, 1, CONTEXT)

    def says(self, prompt: NDArray[np.uint32]) -> list[int]:
        return generate(self._engine, [Run(prompt.tolist(), NEW)], CONTEXT)[0]


def prompt(length: int, seed: int) -> NDArray[np.uint32]:
    return np.random.default_rng((seed, length)).integers(0, CONFIG.vocab, length).astype(np.uint32)


@contextlib.asynccontextmanager
async def pair(
    shm: Path, kind: str, *, by_layers: bool = True, step_tokens: int = 2048, settle: bool = True, **changed: Any
) -> AsyncIterator[OneByOne]:
    settings = AgentSettings(**{"busy_poll_s": 0.002, "idle_poll_s": 0.004, **changed})
    peers = Straight()
    with tempfile.TemporaryDirectory() as disk, RegionHost("shm", "") as regions:
        async with (
            service("kvstore", "--path", disk, HOSTLESS_SHM=str(shm)) as running,
            StoreClient(running.address) as store,
        ):
            prefill = ServedSide(
                shm, "prefill", store, settings, regions, gpu_kit(kind, step_tokens), pages=80,
                step_tokens=step_tokens, by_layers=by_layers, peers=cast(Peers, peers),
            )  # fmt: skip
            decode = ServedSide(shm, "decode", store, settings, regions, cpu_kit(), pages=80, step_tokens=CONTEXT)
            peers.decode = decode
            async with decode.run(settle), prefill.run(settle):
                yield OneByOne(prefill, decode, peers, store)


def passes_of(o: OneByOne, monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """What the prefill side's agent hears, from now on."""
    layers, heard = o.prefill.scheduler.layers, list[Pass]()
    assert layers is not None
    tell = layers.tell

    def told(passes: Sequence[Pass]) -> None:
        heard.extend(passes)
        tell(passes)

    monkeypatch.setattr(layers, "tell", told)
    return heard


async def right(o: OneByOne, by: tuple[str, ...] = ("prefill", "decode", "split")) -> None:
    alone = Alone()
    for length, hit in HITS:
        for seed, side in enumerate(by if hit else by[:1]):
            tokens = prompt(length, seed)
            if hit:
                await o.stored(tokens, hit)
            assert await o.ask(tokens, NEW, hit, side) == alone.says(tokens), (length, hit, side)


@pytest.mark.parametrize("kind", KINDS)
def test_by_layers(shm: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with pair(shm, kind) as o:
            heard = passes_of(o, monkeypatch)
            await right(o)
            assert sum(one.over and one.computed == CONFIG.layers for one in set(heard)) >= len(HITS)

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_by_blocks(shm: Path, kind: str) -> None:
    async def run() -> None:
        async with pair(shm, kind, by_layers=False) as o:
            await right(o, ("prefill", "decode"))

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_in_chunks(shm: Path, kind: str) -> None:
    async def run() -> None:
        async with pair(shm, kind, step_tokens=500) as o:
            await right(o)

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["prefill", "decode"])
def test_a_layer_is_computed_while_later_ones_are_on_their_way(
    shm: Path, kind: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer is held back until the last but one is computed: who loads all before it computes would never end."""

    async def run() -> None:
        async with pair(shm, kind) as o:
            tokens = prompt(700, 1)
            await o.stored(tokens, 8)
            heard = passes_of(o, monkeypatch)
            held = Fetches(monkeypatch, by)
            held.before = lambda layer: until(lambda: layer < 2 or (bool(heard) and heard[-1].computed >= layer - 1))
            assert await o.ask(tokens, NEW, 8, by) == Alone().says(tokens)
            assert held.seen == list(range(CONFIG.layers))

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["prefill", "decode"])
@pytest.mark.parametrize("layer", [0, 2, CONFIG.layers - 1])
def test_a_layer_that_does_not_come_is_computed(
    shm: Path, kind: str, by: str, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(shm, kind) as o:
            tokens = prompt(700, 3)
            await o.stored(tokens, 9)
            Fetches(monkeypatch, by).broken = {layer}
            assert await o.ask(tokens, NEW, 9, by, cached=0) == Alone().says(tokens)

    asyncio.run(run())
