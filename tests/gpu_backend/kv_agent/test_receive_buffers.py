"""Parts of the receive memory come back when nobody is behind their gates, and who is slow is told of."""

import asyncio
import os

import numpy as np
import pytest

from services.common import paths
from services.fabric.gate import GateKey
from services.fabric.hosting import SHARED_MEMORY
from services.gpu_backend.kv_agent import receive_buffers
from services.gpu_backend.kv_agent.pages import HostPages
from services.gpu_backend.kv_agent.receive_buffers import ReceiveBuffers
from services.gpu_backend.kv_agent.settings import AgentSettings
from tests.waiting import until

BLOCK_BYTES, BLOCKS = 4096, 4
LATE = "its receive buffer is still held"


async def test_a_part_whose_gate_is_held_is_nobody_else_s(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receive_buffers, "LATE_S", 0.0)
    pages = HostPages(np.zeros((BLOCKS, BLOCK_BYTES), np.uint8))
    settings = AgentSettings(receive_buffer_bytes=BLOCKS * BLOCK_BYTES)
    buffers = ReceiveBuffers(pages, SHARED_MEMORY, "receive", settings)
    running = asyncio.create_task(buffers.run())
    await buffers.ready()
    share = buffers.memory.ask(3 * BLOCK_BYTES)
    buffer = await buffers.make(share, 3)
    assert buffer.place.gate
    key = GateKey(buffer.place.gate)
    with key.hold():
        buffers.let_go(buffer, share)
        other = buffers.memory.ask(2 * BLOCK_BYTES)
        await until(lambda: LATE in caplog.text)
        await asyncio.sleep(3 * receive_buffers.LOOK_S)  # more looks
        assert not other.granted.done()
    async with asyncio.timeout(10):
        await other.granted
    assert caplog.text.count(LATE) == 1, "once"
    buffers.memory.give_back(other)
    assert buffers.memory.free == buffers.memory.size
    key.close()
    running.cancel()
    await asyncio.wait((running,))
    await buffers.close()
    assert os.listdir(paths.shm_dir()) == []
