"""The agent between an engine's memory and a real store."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.common.keys import next_key, root_key
from services.kvstore.client import Block, Readout
from tests.gpu_backend.kv_agent.conftest import PATIENT
from tests.waiting import until

BLOCK_BYTES = 20_000


async def test_what_was_stored_is_loaded_byte_for_byte(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT, load_buffer_bytes=2 * 3 * BLOCK_BYTES) as r:
        prompt = r.prompt(20)
        r.store(1, 7, prompt)
        r.end(1, 7)
        await r.settled()
        assert (r.agent.counters.blocks_stored, r.agent.counters.blocks_dropped) == (20, 0)
        r.load(2, 9, prompt)
        assert await r.answered(2, 9) == 20
        assert r.loaded(2, 20) == r.content(prompt)
        r.end(2, 9)
        await r.settled()
        counters = r.agent.counters
        assert (counters.loads, counters.loads_short) == (1, 0)
        assert (counters.blocks_loaded, counters.bytes_loaded) == (20, 20 * BLOCK_BYTES)
        await until(lambda: not r.client._calls.freeing)
        stats = await r.client.stats()
        assert (stats.blocks, stats.leases, stats.tickets) == (20, 0, 0)


async def test_a_chain_goes_on_behind_what_was_loaded(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT) as r:
        prompt = r.prompt(9)
        r.store(1, 1, prompt[: 3 * 64])
        await r.settled()
        r.load(2, 1, prompt[: 5 * 64])
        assert await r.answered(2, 1) == 3, "the other two are not there"
        assert r.loaded(2, 3) == r.content(prompt)[:3]
        r.store(2, 1, prompt, first=3)
        await r.settled()
        r.load(3, 1, prompt)
        assert await r.answered(3, 1) == 9
        assert r.loaded(3, 9) == r.content(prompt)
        assert r.agent.counters.loads_short == 1


async def test_a_store_that_finds_blocks_but_reads_none_costs_the_hit_alone(
    spawn: Any, rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT) as r:
        prompt = r.prompt(5)
        r.store(1, 1, prompt)
        await r.settled()

        async def nothing(*_: Any, **__: Any) -> Readout:
            return Readout(0, "its disk is broken")

        with monkeypatch.context() as broken:
            broken.setattr(r.client, "read", nothing)
            r.load(2, 1, prompt)
            assert await r.answered(2, 1) == 0
        r.load(3, 1, prompt)
        assert await r.answered(3, 1) == 5, "the agent goes on"


async def test_blocks_that_the_store_has_are_not_written_again(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT) as r:
        prompt = r.prompt(6)
        r.store(1, 1, prompt[: 4 * 64])
        await r.settled()
        r.store(2, 1, prompt)
        await r.settled()
        assert (r.agent.counters.blocks_stored, r.agent.counters.blocks_existing) == (6, 4)
        assert (await r.client.stats()).blocks_written == 6


async def test_only_the_prompts_own_blocks_are_accepted(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT) as r:
        prompt = r.prompt(4)
        r.store(1, 1, prompt)
        await r.settled()
        r.load(2, 1, r.prompt(4, seed=1))
        assert await r.answered(2, 1) == 0
        half = prompt.copy()
        half[2 * 64] ^= 1
        r.load(3, 1, half)
        assert await r.answered(3, 1) == 2
        r.load(4, 1, prompt)
        r.prompts.clear()
        assert await r.answered(4, 1) == 0, "the slot holds another request by now"


async def test_a_burst_larger_than_the_stores_buffer_is_stored_all_the_same(spawn: Any, rig: Any) -> None:
    store = await spawn(write_buffer_bytes=3 * 65536)
    async with rig(store.address, **PATIENT) as r:
        prompts = [r.prompt(30, seed) for seed in range(2)]
        for slot, prompt in enumerate(prompts):
            r.store(slot, 1, prompt)
        await r.settled()
        assert (r.agent.counters.blocks_stored, r.agent.counters.blocks_dropped) == (60, 0)
        for slot, prompt in enumerate(prompts):
            r.load(slot, 2, prompt)
            assert await r.answered(slot, 2) == 30
            assert r.loaded(slot, 30) == r.content(prompt)


async def test_a_block_that_can_not_be_stored_ends_its_chain_only(spawn: Any, rig: Any) -> None:
    store = await spawn(engine="files", capacity_bytes=5 * (BLOCK_BYTES + 4096), high_watermark=1, low_watermark=1)
    async with rig(store.address, **PATIENT) as r:
        long, short = r.prompt(8), r.prompt(2, seed=1)
        r.store(1, 1, long)
        await r.settled()
        assert (r.agent.counters.blocks_stored, r.agent.counters.blocks_dropped) == (5, 3)
        r.store(1, 1, r.prompt(9), first=8)
        r.store(2, 1, short)
        await r.settled()
        assert (r.agent.counters.blocks_stored, r.agent.counters.blocks_dropped) == (7, 4)


async def test_patience_ends_and_the_page_is_let_go(spawn: Any, rig: Any) -> None:
    store = await spawn(write_buffer_bytes=65536)
    async with rig(store.address, store_patience_s=0.1) as r, r.client.write([_a_block()]) as hog:
        assert hog.reason(0) == ""
        r.store(1, 1, r.prompt(5))
        await r.settled()
        assert (r.agent.counters.blocks_stored, r.agent.counters.blocks_dropped) == (0, 5)


async def test_without_a_store_loads_are_0_and_pages_are_let_go(rig: Any) -> None:
    async with rig("127.0.0.1:1") as r:
        for slot in range(4):
            r.store(slot, 1, r.prompt(10, slot))
            r.load(slot + 10, 1, r.prompt(5))
        for slot in range(4):
            assert await r.answered(slot + 10, 1) == 0
        await r.settled()
        assert r.agent.counters.blocks_dropped == 40


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_store_that_dies_or_freezes_in_a_load_is_answered_in_time(spawn: Any, rig: Any, number: int) -> None:
    store = await spawn()
    in_time = {**PATIENT, "load_deadline_s": 20, "read_timeout_s": 2}
    async with rig(store.address, **in_time, load_buffer_bytes=2 * BLOCK_BYTES) as r:
        prompt = r.prompt(200)
        r.store(1, 1, prompt[: 64 * 100])
        await r.settled()
        r.load(2, 1, prompt[: 64 * 100])
        await until(lambda: r.kv_pages[r.orders.tables[2][0]].any())
        store.process.send_signal(number)
        r.load(3, 1, prompt[: 64 * 50])
        blocks = await r.answered(2, 1)
        assert r.loaded(2, blocks) == r.content(prompt)[:blocks]
        assert blocks < 100
        assert await r.answered(3, 1) < 50
        assert r.agent.read_queue_tokens == 0
        r.store(4, 1, prompt[: 64 * 5])
        await r.settled()


async def test_a_store_that_was_frozen_writes_into_no_later_load(spawn: Any, rig: Any, shared_memory: Path) -> None:
    store = await spawn()
    in_time = {**PATIENT, "read_timeout_s": 2}
    async with rig(store.address, **in_time, load_buffer_bytes=2 * BLOCK_BYTES, retry_s=0.05, load_workers=1) as r:
        prompts = [r.prompt(40, seed) for seed in range(2)]
        for slot, prompt in enumerate(prompts):
            r.store(slot, 1, prompt)
        await r.settled()
        r.load(10, 1, prompts[0])
        await until(lambda: r.kv_pages[r.orders.tables[10][0]].any())
        store.process.send_signal(signal.SIGSTOP)
        assert await r.answered(10, 1) < 40
        assert not [name for name in os.listdir(shared_memory) if "load" in name], "the buffer is given up"
        store.process.send_signal(signal.SIGCONT)
        for attempt in range(2, 1000):
            r.load(11, attempt, prompts[1])
            if await r.answered(11, attempt) == 40:
                break
        assert r.loaded(11, 40) == r.content(prompts[1])


async def test_a_frozen_store_holds_no_page_for_long(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, begin_timeout_s=0.2, commit_timeout_s=0.3, store_patience_s=0.3) as r:
        r.store(1, 1, r.prompt(2, seed=5))
        await r.settled()
        before = r.agent.counters.blocks_dropped
        store.process.send_signal(signal.SIGSTOP)
        for slot in range(5):
            r.store(slot, 2, r.prompt(30, slot))
        await r.settled()
        assert r.agent.counters.blocks_dropped == before + 150
        store.process.send_signal(signal.SIGCONT)


async def test_the_agent_stores_again_when_the_store_is_back(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT, retry_s=0.05) as r:
        prompt = r.prompt(4)
        r.store(1, 1, prompt)
        await r.settled()
        store.process.kill()
        await store.process.wait()
        r.load(2, 1, prompt)
        assert await r.answered(2, 1) == 0
        await spawn(address=store.address)
        for attempt in range(2, 1000):
            r.load(2, attempt, prompt)
            if await r.answered(2, attempt):
                break
            await asyncio.sleep(0.02)
        assert r.orders.answers[2, attempt] == 4
        r.store(3, 1, r.prompt(4, seed=8))
        await r.settled()
        assert r.agent.counters.blocks_stored == 8


async def test_an_ended_request_stops_its_load(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT, load_buffer_bytes=2 * BLOCK_BYTES) as r:
        prompt = r.prompt(100)
        r.store(1, 1, prompt)
        await r.settled()
        r.load(2, 1, prompt)
        await until(lambda: r.kv_pages[r.orders.tables[2][0]].any())
        r.end(2, 1)
        blocks = await r.answered(2, 1)
        assert 0 < blocks < 100
        assert r.loaded(2, blocks) == r.content(prompt)[:blocks]


async def test_a_cancelled_agent_answers_what_it_has(spawn: Any, rig: Any) -> None:
    store = await spawn()
    async with rig(store.address, **PATIENT, load_buffer_bytes=2 * BLOCK_BYTES) as r:
        prompt = r.prompt(100)
        r.store(1, 1, prompt)
        await r.settled()
        for slot in range(2, 6):
            r.load(slot, 1, prompt)
        await until(lambda: r.kv_pages[r.orders.tables[2][0]].any())
    blocks = r.orders.answers[2, 1]
    assert 0 < blocks < 100
    assert r.loaded(2, blocks) == r.content(prompt)[:blocks]
    assert r.orders.answers[5, 1] == 0


def _a_block() -> Block:
    tokens = np.zeros(64, "<u4")
    root = root_key("hog", "")
    return Block(next_key(root, tokens), root, 0, BLOCK_BYTES, tokens.tobytes())
