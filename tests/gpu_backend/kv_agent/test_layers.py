"""Prefill layer by layer (D6): one engine's tokens, the closed form's bytes, and nothing held, however it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from services.common.settings import SettingError
from services.fabric.errors import StaleRegion
from services.fabric.ring import Finish, SlotState
from services.gpu_backend import _scheduler
from services.gpu_backend.kv_agent import AgentCounters, AgentSettings, HostPages
from services.gpu_backend.kv_agent.handover import Handover
from services.gpu_backend.kv_agent.layer_sender import LayerSender
from services.gpu_backend.kv_agent.remote_buffer import RemoteBuffer
from services.gpu_backend.kv_agent.sources import HeldHere, LoadedHere, LoadedThere
from services.gpu_backend.layers import LayerCounters, Pass
from services.gpu_backend.settings import BackendSettings
from tests.fabric.conformance.benches import BENCHES, Bench
from tests.gpu_backend.kv_agent.one_by_one import (
    IGNORE,
    LANES,
    LAYERS,
    VOCAB,
    OneByOne,
    alone,
    here,
    one_by_one,
)
from tests.waiting import until

LENGTHS = (1, 63, 64, 65, 127, 128, 129, 192, 193, 257)
NEW = 4
SIDES = ("prefill", "decode", "split")
SOME = (0, 2, LAYERS - 1)
"""Layers at which things go wrong."""
WINDOWS = (0, 1, 2, LAYERS - 1)
"""Layers that the prefill engine's pages hold; 0: all."""


def prompt(length: int, seed: int) -> NDArray[np.uint32]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).astype(np.uint32)


def seed(length: int, hit: int, by: str) -> int:
    return length * 1000 + hit * 10 + SIDES.index(by)


async def right_tokens(o: OneByOne, lengths: tuple[int, ...] = LENGTHS, traffic: bool = True) -> None:
    """Every hit that prompts of these lengths can have, read by each side; and bytes over each link to the block."""
    for length in lengths:
        for hit in range((length - 1) // 64 + 1):
            for by in SIDES if hit else SIDES[:1]:
                tokens = prompt(length, seed(length, hit, by))
                if hit:
                    await o.stored(tokens, hit)
                before = o.moved()
                assert await o.ask(tokens, NEW, hit, by) == alone(tokens, NEW), (length, hit, by)
                if traffic:
                    assert_closed_form(o, before, -(-length // 64), hit, here(hit, by))


def assert_closed_form(o: OneByOne, before: dict[str, int], pages: int, hit: int, here: int) -> None:
    """`here`: blocks of the hit that the prefill side read."""
    block = o.decode.engine.geometry.block_bytes
    moved = {link: (count - before[link]) / block for link, count in o.moved().items()}
    expected = {
        "store_to_prefill_buffer": here,
        "prefill_buffer_to_prefill_pages": here,
        "store_to_decode_buffer": hit - here,
        "decode_buffer_to_prefill_pages": hit - here,
        "prefill_pages_to_decode_buffer": pages - (hit - here),
        "decode_buffer_to_decode_pages": pages,
    }
    assert {link: moved[link] for link in expected} == expected


@pytest.mark.parametrize("resident", WINDOWS)
async def test_every_hit_length(spawn: Any, tmp_path: Path, resident: int) -> None:
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=resident) as o:
        await right_tokens(o)


async def test_the_slow_reference(spawn: Any, tmp_path: Path) -> None:
    store = await spawn()
    async with one_by_one(store.address, tmp_path, by_layers=False) as o:
        await right_tokens(o, (65, 193))


@pytest.mark.parametrize("resident", [0, 2])
@pytest.mark.parametrize("bench", [bench for bench in BENCHES if bench.name != "shm"], ids=lambda bench: bench.label)
async def test_over_each_transport(spawn: Any, tmp_path: Path, bench: Bench, resident: int) -> None:
    if why := bench.missing():
        pytest.skip(why)
    store = await spawn(transport=bench.name)
    async with one_by_one(store.address, tmp_path, bench.name, resident=resident) as o:
        await right_tokens(o, (65, 193))


@pytest.mark.parametrize("resident", WINDOWS)
async def test_prompts_in_chunks_of_odd_length(spawn: Any, tmp_path: Path, resident: int) -> None:
    """In a window what earlier chunks computed comes back from the decode side's buffer."""
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=resident, step_tokens=100) as o:
        await right_tokens(o, (200, 257), traffic=resident == 0)


@pytest.mark.parametrize("by", SIDES)
async def test_a_context_larger_than_the_pages_of_all_layers(spawn: Any, tmp_path: Path, by: str) -> None:
    """Memory for 4 pages of all layers, or for 10 of two layers; the prompt has 9 blocks."""
    store = await spawn()
    tokens = prompt(9 * 64 - 5, 4)
    async with one_by_one(store.address, tmp_path, prefill_pages=4) as o:
        prefill, decode = o.start(tokens, NEW, 0, by)
        assert await prefill.ended() is Finish.TOO_LARGE
        decode.cancel()
        assert await decode.ended() is Finish.CANCELLED
    async with one_by_one(store.address, tmp_path, prefill_pages=10, resident=2) as o:
        await o.stored(tokens, 7)
        assert await o.ask(tokens, NEW, 7, by) == alone(tokens, NEW)
        assert o.prefill.engine.kv_pages.nbytes == 4 * o.decode.engine.geometry.block_bytes


@pytest.mark.parametrize("by", SIDES)
async def test_a_layer_is_computed_while_later_ones_are_on_their_way(
    spawn: Any, tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer is held back until the last but one is computed: who loads all before it computes would never end."""
    store = await spawn()
    async with one_by_one(store.address, tmp_path) as o:
        tokens = prompt(200, 1)
        await o.stored(tokens, 3)
        computed = Computed(o)
        held = Fetches(monkeypatch, by)
        held.before = lambda layer: until(lambda: computed.layers >= layer - 1)
        assert await o.ask(tokens, NEW, 3, by) == alone(tokens, NEW)
        assert held.seen == list(range(LAYERS))


async def test_new_kv_leaves_while_later_layers_are_computed(spawn: Any, tmp_path: Path) -> None:
    """In a window of one layer no layer can be computed before the last one has left."""
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=1) as o:
        tokens = prompt(130, 2)
        assert await o.ask(tokens, NEW) == alone(tokens, NEW)


@pytest.mark.parametrize("resident", [0, 2])
@pytest.mark.parametrize("by", SIDES)
@pytest.mark.parametrize("layer", SOME)
async def test_a_layer_that_does_not_come_is_computed(
    spawn: Any, tmp_path: Path, by: str, layer: int, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=resident) as o:
        tokens = prompt(200, 3)
        await o.stored(tokens, 3)
        Fetches(monkeypatch, by).broken = {layer}
        prefill, decode = o.start(tokens, NEW, 3, by)
        assert (await prefill.ended(), await decode.ended()) == (Finish.HANDED_OVER, Finish.LENGTH)
        assert decode.tokens() == alone(tokens, NEW)
        assert prefill.cached() == 0


@pytest.mark.parametrize("resident", [0, 2])
@pytest.mark.parametrize("by", SIDES)
async def test_a_layer_that_never_comes_is_given_up_in_time(
    spawn: Any, tmp_path: Path, by: str, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=resident, layers_s=0.3) as o:
        tokens = prompt(200, 3)
        await o.stored(tokens, 3)
        Fetches(monkeypatch, by).before = lambda layer: until(lambda: layer != 2)
        assert (await o.ask(tokens, NEW, 3, by, cached=0)) == alone(tokens, NEW)


@pytest.mark.parametrize("resident", [0, 2])
@pytest.mark.parametrize("layer", SOME)
async def test_a_layer_that_does_not_leave_is_sent_again(
    spawn: Any, tmp_path: Path, layer: int, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await spawn()
    broken, write = {layer}, RemoteBuffer.layer_from_pages

    async def break_once(buffer: RemoteBuffer, kv_pages: Any, layer: int, *where: Any) -> None:
        if layer in broken:
            broken.remove(layer)
            raise StaleRegion("the network has broken")
        await write(buffer, kv_pages, layer, *where)

    monkeypatch.setattr(RemoteBuffer, "layer_from_pages", break_once)
    async with one_by_one(store.address, tmp_path, resident=resident, step_s=0.1) as o:
        tokens = prompt(200, 3)
        prefill, decode = o.start(tokens, NEW, 0, "prefill")
        finish = await prefill.ended()
        assert not broken
        if finish is Finish.KV_LOST:  # the last layers of a window are gone when their loss is noticed
            assert resident
            assert layer >= LAYERS - resident
            decode.cancel()
        else:
            assert (finish, await decode.ended()) == (Finish.HANDED_OVER, Finish.LENGTH)
            assert decode.tokens() == alone(tokens, NEW)


@pytest.mark.parametrize("resident", [0, 2])
@pytest.mark.parametrize("layer", SOME)
async def test_the_decode_side_dies_while_a_layer_comes(
    spawn: Any, tmp_path: Path, layer: int, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=resident) as o:
        tokens = prompt(200, 3)
        await o.stored(tokens, 3)
        fetches = Fetches(monkeypatch, "decode")

        async def die(at: int) -> None:
            if at == layer:
                o.peers.gone = True
                o.decode.agent.receiver.forget(decode.slot, decode.generation)

        fetches.before = die
        prefill, decode = o.start(tokens, NEW, 3, "decode")
        assert await prefill.ended() is Finish.KV_LOST
        decode.cancel()
        assert await decode.ended() is Finish.CANCELLED


def layers_written(o: OneByOne) -> int | None:
    """Of the one prompt whose hit comes; None: none does."""
    layers = o.prefill.scheduler.layers
    assert layers
    words = [layers.word(lane) for lane in range(LANES)]
    return next((word & ~_scheduler.LAYERS_OPEN for word in words if word & _scheduler.LAYERS_OPEN), None)


@pytest.mark.parametrize("resident", [0, 2])
@pytest.mark.parametrize("by", SIDES)
@pytest.mark.parametrize("layer", SOME)
async def test_cancelled_while_a_layer_comes(
    spawn: Any, tmp_path: Path, by: str, layer: int, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages are kept until nothing is written to them any more; then all is free, and the next one is served."""
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=resident) as o:
        tokens, others = prompt(200, 3), prompt(200, 4)
        await o.stored(tokens, 3)
        await o.stored(others, 3)
        fetches = Fetches(monkeypatch, by)
        go_on = asyncio.Event()
        fetches.before = lambda at: go_on.wait() if at == layer else asyncio.sleep(0)
        prefill, decode = o.start(tokens, NEW, 3, by)
        await until(lambda: layer in fetches.seen and layers_written(o) == layer)
        prefill.cancel()
        decode.cancel()
        assert await decode.ended() is Finish.CANCELLED
        assert not o.prefill.idle
        go_on.set()
        assert await prefill.ended() is Finish.CANCELLED
        await until(lambda: o.prefill.idle)
        assert await o.ask(others, NEW, 3, by) == alone(others, NEW)


@pytest.mark.parametrize("resident", [0, 2])
@pytest.mark.parametrize("by", SIDES)
async def test_the_agent_ends_while_a_step_waits_for_it(
    spawn: Any, tmp_path: Path, by: str, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=resident, settle=False) as o:
        tokens = prompt(200, 3)
        await o.stored(tokens, 3)
        fetches = Fetches(monkeypatch, by)
        fetches.before = lambda layer: until(lambda: layer != 3)
        o.start(tokens, NEW, 3, by)
        await until(lambda: 3 in fetches.seen)


async def test_a_window_serves_only_prompts_for_others(spawn: Any, tmp_path: Path) -> None:
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=2) as o:
        whole = o.prefill.submit(prompt(100, 1), 3, SlotState.PREFILL_PENDING, flags=IGNORE)
        assert await whole.ended() is Finish.KV_LOST
        tokens = prompt(100, 2)
        assert await o.ask(tokens, NEW) == alone(tokens, NEW)


async def test_many_at_once(spawn: Any, tmp_path: Path) -> None:
    """Prompts share steps, hits come from both sides, some are given up."""
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=2, step_tokens=150) as o:
        prompts = [prompt(60 + 41 * i, i) for i in range(8)]
        hits = [(len(tokens) - 1) // 64 for tokens in prompts]
        for tokens, hit in zip(prompts, hits, strict=True):
            await o.stored(tokens, hit)
        asked = [
            o.start(tokens, NEW, hit, SIDES[i % 2]) for i, (tokens, hit) in enumerate(zip(prompts, hits, strict=True))
        ]
        for i in (2, 5):
            for one in asked[i]:
                one.cancel()
        for i, (prefill, decode) in enumerate(asked):
            finishes = await prefill.ended(), await decode.ended()
            if i not in (2, 5):
                assert finishes == (Finish.HANDED_OVER, Finish.LENGTH)
                assert decode.tokens() == alone(prompts[i], NEW)


@pytest.mark.parametrize(
    "wrong", [{"role": "unified"}, {"engine": "cuda"}, {"kv_copies": "loopback", "transport": "tcp"}], ids=str
)
def test_settings_of_a_window_that_make_no_sense(wrong: dict[str, str]) -> None:
    fields: dict[str, Any] = {"role": "prefill", "kvstore": "h:1", "kv_layers_resident": 2}
    assert BackendSettings(**fields).kv_layers_resident == 2
    with pytest.raises(SettingError, match="kv-layers-resident: takes role prefill"):
        BackendSettings(**(fields | wrong))


class Computed:
    """How many layers of its newest pass the prefill engine has computed."""

    def __init__(self, o: OneByOne) -> None:
        self.layers = 0
        counters = o.prefill.scheduler.layers
        assert counters
        tell = counters.tell

        def listen(passes: Sequence[Pass]) -> None:
            self.layers = max(one.computed for one in passes)
            tell(passes)

        counters.tell = listen  # type: ignore[method-assign]


@pytest.mark.parametrize(("computed", "kept"), [(LAYERS, True), (LAYERS - 1, False)])
async def test_a_step_that_ends_before_its_order_is_seen(computed: int, kept: bool) -> None:
    """Its layers still lie in the pages, if all are computed."""
    layers = LayerCounters(np.zeros(64, np.uint8), 0)
    pages = HostPages(np.zeros((4, LAYERS * 8), np.uint8), LAYERS)
    sender, handover = LayerSender(pages, layers, AgentCounters(), AgentSettings()), Handover(5, 3, 0, 7)
    one = Pass(5, 3, 0, 0, 20, True, np.zeros(1, np.uint32))
    assert sender.heard({}, [one])
    one.computed, one.over = computed, True
    sender.heard({}, [one])
    sender.begin(handover)
    assert handover.jobs.qsize() == kept


async def test_news_of_steps_after_their_requests_end_are_kept_for_one_a_slot() -> None:
    pages = HostPages(np.zeros((4, LAYERS * 8), np.uint8), LAYERS)
    layers = LayerCounters(np.zeros(64, np.uint8), 0)
    sender = LayerSender(pages, layers, AgentCounters(), AgentSettings())
    for generation in range(1, 50):
        sender.end((5, generation), last=True)
        late = Pass(5, generation, 0, 0, 20, True, np.zeros(1, np.uint32), computed=LAYERS, over=True)
        sender.heard({}, [late])
    assert len(sender._unclaimed) == 1
    sender.begin(other := Handover(5, 50, 0, 7))
    assert other.jobs.empty(), "it is not this request's"


class Fetches:
    """What is done before a layer is fetched where this side has read the hit. seen: the layers, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
        self.seen: list[int] = []
        self.broken: set[int] = set()
        self.before: Callable[[int], Awaitable[None]] = self._nothing
        source: Any = LoadedHere if by == "prefill" else LoadedThere
        fetch = source.fetch

        async def held(this: Any, layer: int) -> Any:
            self.seen.append(layer)
            await self.before(layer)
            if layer in self.broken:
                self.broken.remove(layer)
                raise OSError(f"layer {layer} is broken")
            return await fetch(this, layer)

        monkeypatch.setattr(source, "fetch", held)

    async def _nothing(self, layer: int) -> None:
        return


async def test_held_blocks_count_as_reused_once_they_are_brought(
    spawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(source: HeldHere, layer: int) -> Any:
        raise OSError("it does not come")

    store = await spawn()
    async with one_by_one(store.address, tmp_path, held_bytes=1 << 24) as o:
        tokens, counters = prompt(200, 3), o.prefill.agent.counters
        await o.stored(tokens, 3)
        assert await o.ask(tokens, NEW, 3) == alone(tokens, NEW)
        assert (counters.blocks_loaded, counters.blocks_reused) == (3, 0)
        with monkeypatch.context() as m:
            m.setattr(HeldHere, "fetch", broken)
            assert await o.ask(tokens, NEW, 3, cached=0) == alone(tokens, NEW)
        assert counters.blocks_reused == 0
        assert await o.ask(tokens, NEW, 3) == alone(tokens, NEW)
        assert (counters.blocks_loaded, counters.blocks_reused) == (3, 3)
