"""Buffers that are regions of their own are made beside the event loop, and none is left by who leaves meanwhile."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from services.common import paths
from services.fabric.gate import GateKey
from services.fabric.hosting import SHARED_MEMORY
from services.fabric.region import MemoryRegion
from services.fabric.rights import Rights
from services.gpu_backend.kv_agent.inbound import UnknownTransfer
from services.gpu_backend.kv_agent.load_buffer import LoadBuffer
from services.gpu_backend.kv_agent.pages import HostPages
from services.gpu_backend.kv_agent.receive_buffers import ReceiveBuffers
from services.gpu_backend.kv_agent.settings import AgentSettings
from tests.gpu_backend.kv_agent.fake_device import FakeDevicePages
from tests.gpu_backend.kv_agent.test_transfers import BLOCK_BYTES, LAYERS, PAGES, End, pair

PATIENCE_S = 30.0


class SlowRegions:
    """A RegionHost whose regions are made when `go_on` is set."""

    local = False

    def __init__(self) -> None:
        self.begun, self.go_on, self.made = threading.Event(), threading.Event(), list[MemoryRegion]()

    def create(self, name: str, length: int, peers_may: Rights) -> MemoryRegion:
        assert threading.current_thread() is not threading.main_thread()
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        self.made.append(SHARED_MEMORY.create(name, length, peers_may))
        return self.made[-1]

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, PATIENCE_S)


@pytest.fixture
async def slow() -> AsyncIterator[SlowRegions]:
    slow = SlowRegions()
    yield slow
    slow.go_on.set()
    assert os.listdir(paths.shm_dir()) == []


def buffers_in(slow: SlowRegions) -> ReceiveBuffers:
    pages = HostPages(np.zeros((PAGES, BLOCK_BYTES), np.uint8), LAYERS)
    return ReceiveBuffers(pages, slow, "test", AgentSettings())  # type: ignore[arg-type]


async def cancelled(task: "asyncio.Task[object]", slow: SlowRegions) -> None:
    task.cancel()
    await asyncio.sleep(0)
    slow.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_receive_buffer_whose_maker_leaves(slow: SlowRegions) -> None:
    buffers = buffers_in(slow)
    task: asyncio.Task[object] = asyncio.create_task(buffers.make(buffers.memory.ask(BLOCK_BYTES), 1))
    await slow.until_begun()
    await cancelled(task, slow)
    assert len(slow.made) == 1


async def test_a_buffer_in_place_of_another_whose_maker_leaves(slow: SlowRegions) -> None:
    pages = FakeDevicePages(np.zeros((PAGES, BLOCK_BYTES), np.uint8), LAYERS)
    buffers = ReceiveBuffers(pages, slow, "test", AgentSettings(receive_on_device=True))  # type: ignore[arg-type]
    before = await buffers.make(share := buffers.memory.ask(BLOCK_BYTES), 1)
    assert before.place.gate
    key = GateKey(before.place.gate)
    task: asyncio.Task[object] = asyncio.create_task(buffers.of_its_own(1, before))
    await slow.until_begun()
    await cancelled(task, slow)
    with key.hold():  # its gate is as open as it was
        pass
    key.close()
    buffers.let_go(before, share)
    assert buffers.memory.free == buffers.memory.size


async def test_a_load_buffer_whose_maker_leaves(slow: SlowRegions) -> None:
    buffer = LoadBuffer(slow, "load", 1, BLOCK_BYTES)  # type: ignore[arg-type]
    task: asyncio.Task[object] = asyncio.create_task(buffer.descriptor())
    await slow.until_begun()
    await cancelled(task, slow)
    assert (await buffer.descriptor()).length == BLOCK_BYTES
    assert len(slow.made) == 1, "what was made for who left is used"
    buffer.discard()


async def test_a_prompt_that_ends_while_its_buffer_is_made(slow: SlowRegions, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = End.shared
    monkeypatch.setattr(End, "shared", lambda *given: replace(shared(*given), regions=slow))
    async with pair() as p:
        p.expect()
        opening = asyncio.create_task(p.receiver.open(7, BLOCK_BYTES, ""))
        await slow.until_begun()
        p.receiver.forget(2, 1)
        slow.go_on.set()
        with pytest.raises(UnknownTransfer):
            await opening
        assert len(slow.made) == 1
