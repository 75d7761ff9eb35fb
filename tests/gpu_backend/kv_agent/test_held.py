"""Blocks held in memory: against a slow reference, and in an agent before a real store."""

import asyncio
import signal
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_backend.kv_agent.held import HeldBlocks
from services.gpu_backend.kv_agent.links import KvLink
from tests.gpu_backend.kv_agent.conftest import BLOCK_BYTES, PATIENT
from tests.waiting import until

BYTES = 8


class Reference:
    """A key is its chain's path; a use of a block is a use of all before it; the oldest end that nobody pins goes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used: dict[bytes, int] = {}
        self.pins: list[bytes] = []
        self.told: set[bytes] = set()
        self.now = 0

    def run(self, chain: bytes) -> bytes:
        while chain and chain not in self.used:
            chain = chain[:-1]
        return chain

    def use(self, key: bytes) -> None:
        self.now += 1
        for end in range(1, len(key) + 1):
            self.used[key[:end]] = self.now

    def put(self, key: bytes) -> None:
        if key[:-1] and key[:-1] not in self.used:
            return
        if key not in self.used and len(self.used) == self.most:
            parents = {other[:-1] for other in self.used} | {key[:-1]}
            ends = [other for other in self.used if other not in parents and other not in self.pins]
            if not ends:
                return
            del self.used[min(ends, key=self.used.__getitem__)]
        if self.most:
            self.use(key)


def content(key: bytes) -> Any:
    return np.frombuffer(key.ljust(BYTES, b"\0"), np.uint8)


def chain(key: bytes) -> list[bytes]:
    return [key[:end] for end in range(1, len(key) + 1)]


paths = st.binary(min_size=1, max_size=5).map(lambda raw: bytes(97 + byte % 2 for byte in raw))
steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put all", "use", "pin", "unpin", "news", "anew"]), paths), max_size=60
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 7), steps)
def test_as_the_reference(most: int, steps: list[tuple[str, bytes]]) -> None:
    held, right = HeldBlocks(most * BYTES + 3, BYTES), Reference(most)
    pins: list[tuple[bytes, ExitStack, Any]] = []
    heard: set[bytes] = set()
    for kind, path in steps:
        match kind:
            case "put" | "put all":
                for key in chain(path) if kind == "put all" else [path]:
                    lacks = held.lacks(key, key[:-1] or None)
                    assert lacks == (most > 0 and key not in right.used and (not key[:-1] or key[:-1] in right.used))
                    held.put(key, key[:-1] or None, content(key))
                    right.put(key)
            case "use":
                with held.pinned(chain(path)):
                    pass
                if found := right.run(path):
                    right.use(found)
            case "pin":
                stack = ExitStack()
                pins.append((right.run(path), stack, stack.enter_context(held.pinned(chain(path)))))
                right.pins.append(pins[-1][0])
            case "unpin" if pins:
                found, stack, _ = pins.pop(0)
                stack.close()
                right.pins.remove(found)
                if found:
                    right.use(found)
            case "news" | "anew":
                heard = set() if kind == "anew" else heard
                added, removed = held.news(kind == "anew", 3)
                assert len(added) + len(removed) <= 3
                assert heard.isdisjoint(added), "it was told already"
                assert heard.issuperset(removed), "nobody was told that it was held"
                heard = (heard | set(added)) - set(removed)
        held.check()
        assert len(held) == len(right.used) <= most
        assert held.run(chain(path)) == len(right.run(path))
        for found, _, run in pins:
            assert [run.block(at).tobytes() for at in range(len(run))] == [
                content(key).tobytes() for key in chain(found)
            ]
    while changed := held.news(False, 3):
        if changed == ([], []):
            break
        heard = (heard | set(changed[0])) - set(changed[1])
    assert heard == set(right.used)


def test_layers_are_those_of_the_blocks() -> None:
    held = HeldBlocks(10 * BYTES, BYTES)
    for key in chain(b"abc"):
        held.put(key, key[:-1] or None, content(key))
    with held.pinned(chain(b"abcd")) as run:
        layers = np.stack([content(key) for key in chain(b"abc")]).reshape(3, 4, 2)
        for layer in range(4):
            assert (run.layer(layer, 4) == layers[:, layer]).all()


async def test_what_was_offered_is_not_read_again(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT, held_bytes=100 * BLOCK_BYTES) as r:
        prompt = r.prompt(12)
        r.store(1, 1, prompt[: 10 * 64])
        await r.settled()
        r.load(2, 1, prompt[: 10 * 64])
        assert await r.answered(2, 1) == 10
        assert r.loaded(2, 10) == r.content(prompt)[:10]
        stats = await r.client.stats()
        assert (stats.blocks, stats.blocks_read) == (10, 0)
        counters = r.agent.counters
        assert (counters.loads, counters.loads_short, counters.blocks_loaded, counters.blocks_reused) == (1, 0, 0, 10)
        assert counters.links[KvLink.HELD_PREFILL_PAGES] == 10 * BLOCK_BYTES
        assert counters.links[KvLink.STORE_PREFILL_BUFFER] == counters.links[KvLink.PREFILL_BUFFER_PAGES] == 0
        assert r.agent.read_queue_tokens == 0


async def test_what_was_read_is_read_once(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT) as r:
        prompt = r.prompt(9)
        r.store(1, 1, prompt)
        await r.settled()
    async with rig(store.address, **PATIENT, held_bytes=6 * BLOCK_BYTES, load_buffer_bytes=4 * BLOCK_BYTES) as r:
        for slot, (read, reused) in enumerate([(9, 0), (12, 6), (15, 12)]):
            r.load(slot, 1, prompt)
            assert await r.answered(slot, 1) == 9
            assert r.loaded(slot, 9) == r.content(prompt)
            assert (r.agent.counters.blocks_loaded, r.agent.counters.blocks_reused) == (read, reused), slot
        assert (await r.client.stats()).blocks_read == 15
        r.agent.held.check()


async def test_another_tenants_prompt_finds_nothing(spawn: Any, rig: Any) -> None:
    """The same tokens under another root."""
    store = await spawn()
    async with rig(store.address, **PATIENT, held_bytes=100 * BLOCK_BYTES) as r:
        prompt = r.prompt(5)
        r.store(1, 1, prompt)
        await r.settled()
        r.load(2, 1, prompt)
        r.orders.ring[-1]["kv_root"][0] += 1
        assert await r.answered(2, 1) == 0
        assert r.agent.counters.blocks_reused == 0


async def test_blocks_that_the_store_has_are_held_too(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT) as r:
        prompt = r.prompt(5)
        r.store(1, 1, prompt)
        await r.settled()
    async with rig(store.address, **PATIENT, held_bytes=100 * BLOCK_BYTES) as r:
        r.store(1, 1, prompt)
        await r.settled()
        assert (r.agent.counters.blocks_existing, len(r.agent.held)) == (5, 5)


async def test_a_store_that_is_away_takes_nothing_from_what_is_held(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT, held_bytes=100 * BLOCK_BYTES) as r:
        prompt = r.prompt(8)
        r.store(1, 1, prompt[: 5 * 64])
        await r.settled()
        store.process.send_signal(signal.SIGKILL)
        await store.process.wait()
        for slot in (2, 3):  # the store is found to be away; it is known to be
            r.load(slot, 1, prompt)
            assert await r.answered(slot, 1) == 5
            assert r.loaded(slot, 5) == r.content(prompt)[:5]


async def test_loads_beside_evictions_bring_whole_blocks(spawn: Any, rig: Any) -> None:
    """Memory for 7 blocks, through which 6 prompts of 5 blocks go again and again."""
    store = await spawn()
    async with rig(store.address, **PATIENT, held_bytes=7 * BLOCK_BYTES, load_workers=2) as r:
        prompts = [r.prompt(5, seed) for seed in range(6)]
        for slot, prompt in enumerate(prompts):
            r.store(slot, 1, prompt)
        await r.settled()
        for turn in range(2, 10):
            for slot, prompt in enumerate(prompts):
                r.load(slot, turn, prompt)
                if slot % 3 == 0:
                    r.store(20 + slot, turn, prompt)
            for slot, prompt in enumerate(prompts):
                assert await r.answered(slot, turn) == 5
                assert r.loaded(slot, 5) == r.content(prompt)
        await r.settled()
        for turn in (10, 11):  # alone, so the second time all of it is there
            r.load(0, turn, prompts[0])
            assert await r.answered(0, turn) == 5
        r.agent.held.check()
        counters = r.agent.counters
        assert counters.blocks_reused + counters.blocks_loaded == 8 * 6 * 5 + 2 * 5
        assert counters.blocks_reused >= 5


@pytest.mark.parametrize("held_bytes", [0, BLOCK_BYTES - 1])
async def test_nothing_is_held_without_room_for_a_block(spawn: Any, rig: Any, held_bytes: int) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT, held_bytes=held_bytes) as r:
        prompt = r.prompt(3)
        r.store(1, 1, prompt)
        await r.settled()
        r.load(2, 1, prompt)
        assert await r.answered(2, 1) == 3
        assert len(r.agent.held) == r.agent.counters.blocks_reused == 0


async def test_a_load_that_is_given_up_lets_go(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT, held_bytes=60 * BLOCK_BYTES) as r:
        prompt = r.prompt(60)
        r.store(1, 1, prompt)
        await r.settled()
        r.load(2, 1, prompt)
        await until(lambda: r.kv_pages[r.orders.tables[2][0]].any())
        r.end(2, 1)
        assert 0 < await r.answered(2, 1) <= 60
        await r.settled()
        await asyncio.sleep(0)
        assert not any(block.pins for block in r.agent.held._blocks.values())
        r.store(3, 1, r.prompt(60, seed=1))
        await r.settled()
        assert r.agent.held.run([]) == 0
        assert len(r.agent.held) == 60
