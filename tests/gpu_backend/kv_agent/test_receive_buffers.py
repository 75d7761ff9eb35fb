"""Parts of the receive memory come back when nobody is behind their gates; who stands still in one is told of, and
costs the others nothing but memory."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common import paths
from services.fabric.gate import GateKey
from services.fabric.hosting import SHARED_MEMORY
from services.gpu_backend.kv_agent import receive_buffers
from services.gpu_backend.kv_agent.buffer_memory import BufferMemory, Share
from services.gpu_backend.kv_agent.pages import HostPages
from services.gpu_backend.kv_agent.receive_buffer import ReceiveBuffer
from services.gpu_backend.kv_agent.receive_buffers import ReceiveBuffers
from services.gpu_backend.kv_agent.settings import AgentSettings
from tests.waiting import until

BLOCK_BYTES, BLOCKS = 4096, 4
LATE = "its receive buffer is still held"


@pytest.fixture
async def buffers() -> AsyncIterator[ReceiveBuffers]:
    pages = HostPages(np.zeros((BLOCKS, BLOCK_BYTES), np.uint8))
    settings = AgentSettings(receive_buffer_bytes=BLOCKS * BLOCK_BYTES)
    buffers = ReceiveBuffers(pages, SHARED_MEMORY, "receive", settings)
    running = asyncio.create_task(buffers.run())
    await buffers.ready()
    yield buffers
    await until(lambda: buffers.memory.free == buffers.memory.size)
    running.cancel()
    await asyncio.wait((running,))
    await buffers.close()
    assert os.listdir(paths.shm_dir()) == []


@asynccontextmanager
async def let_go_while_held(buffers: ReceiveBuffers, blocks: int) -> AsyncIterator[ReceiveBuffer]:
    """A buffer whose prompt has ended, while somebody is behind its gate."""
    share = buffers.memory.ask(blocks * BLOCK_BYTES)
    buffer = await buffers.make(share, blocks)
    assert buffer.place.gate
    key = GateKey(buffer.place.gate)
    with closing(key), key.hold():
        buffers.let_go(buffer, share)
        yield buffer


async def test_a_part_whose_gate_is_held_is_nobody_else_s(buffers: ReceiveBuffers) -> None:
    async with let_go_while_held(buffers, 3):
        other = buffers.memory.ask(2 * BLOCK_BYTES)
        await asyncio.sleep(3 * receive_buffers.LOOK_S)  # more looks
        assert not other.granted.done()
    async with asyncio.timeout(60):
        await other.granted
    assert not other.apart
    buffers.memory.give_back(other)


async def test_who_stands_still_is_told_of_and_others_get_memory_elsewhere(
    buffers: ReceiveBuffers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receive_buffers, "LATE_S", 0.0)
    monkeypatch.setattr(receive_buffers, "LATE_LOOK_S", 0.01)
    for freeze in range(1, 4):
        async with let_go_while_held(buffers, 3) as buffer:
            other = buffers.memory.ask(4 * BLOCK_BYTES)
            async with asyncio.timeout(60):
                await other.granted
            assert other.apart
            assert (caplog.text.count(LATE), buffers.late_bytes) == (freeze, 3 * BLOCK_BYTES)
            elsewhere = await buffers.make(other, 4)
            assert elsewhere.place.gate is None, "a region of its own, which ends with its prompt"
            assert elsewhere.place.region.address != buffer.place.region.address
            third = buffers.memory.ask(2 * BLOCK_BYTES)
            await asyncio.sleep(3 * receive_buffers.LATE_LOOK_S)  # more looks
            assert not third.granted.done(), "no more than as much again"
        buffers.let_go(elsewhere, other)
        async with asyncio.timeout(60):
            await third.granted
        buffers.let_go(await buffers.make(third, 2), third)
        await until(lambda: buffers.memory.free == buffers.memory.size)
        assert buffers.late_bytes == 0


@given(st.lists(st.tuples(st.sampled_from(["ask", "ask", "give", "lose"]), st.integers(0, 1000)), max_size=60))
async def test_memory_adds_up_whatever_is_written_off(steps: list[tuple[str, int]]) -> None:
    memory, shares = BufferMemory(20), list[Share]()
    for step, number in steps:
        held = [share for share in shares if share.granted.done() and not share.apart]
        if step == "ask":
            shares.append(memory.ask(1 + number % 20))
        elif step == "give" and shares:
            memory.give_back(shares.pop(number % len(shares)))
        elif step == "lose" and held:
            memory.write_off(held[number % len(held)])
        granted = [share for share in shares if share.granted.done()]
        placed = [range(share.first, share.first + share.size) for share in granted if not share.apart]
        taken = [byte for place in placed for byte in place]
        assert sorted(set(taken)) == sorted(taken), "shares overlap"
        assert all(0 <= byte < memory.size for byte in taken)
        assert memory.free == memory.size - sum(share.size for share in granted)
        apart = sum(share.size for share in granted if share.apart)
        lost = sum(share.size for share in granted if share.lost)
        assert apart <= memory.size
        waiting = [share for share in shares if not share.granted.done()]
        if waiting and lost:
            assert waiting[0].size > memory.size - sum(share.size for share in granted if not share.lost)
    for share in shares:
        memory.give_back(share)
    assert memory.free == memory.size
    assert not memory.waiting
