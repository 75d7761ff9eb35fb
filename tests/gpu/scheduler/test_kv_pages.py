"""Pages of the GPU's memory in and out by copies, also while a scheduler that never ends is on the GPU."""

import asyncio
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("cuda.bindings", reason="NOT RUN: CUDA's Python bindings are missing: pip install 'hostless[cuda]'")

from services.gpu_backend.device import driver
from services.gpu_backend.device.device_scheduler import DeviceScheduler
from services.gpu_backend.device.kv_pages import DevicePages
from services.gpu_backend.device.settings import DeviceSettings
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu.scheduler.rig import Rig

pytestmark = pytest.mark.gpu
PAGES, BLOCK, LAYERS = 12, 3 << 20, 6
SOME = np.array([4, 5, 6, 11, 10, 0, 1], np.uint32)
"""Runs of pages, and pages alone."""
SEVERAL = np.arange(PAGES, dtype=np.uint32)


def drawn(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(shape[0]).integers(0, 256, shape, np.uint8)


async def one_by_one(pages: DevicePages) -> None:
    content = drawn(PAGES, BLOCK)
    async with asyncio.TaskGroup() as tasks:
        for page in range(PAGES):
            tasks.create_task(pages.write_from(SEVERAL[page : page + 1], content[page : page + 1]))
    for page in reversed(range(PAGES)):
        assert (await pages.read(page) == content[page]).all(), page
    cut = asyncio.create_task(pages.write_from(SEVERAL[:1], content[1:2]))
    await asyncio.sleep(0)
    cut.cancel()
    await asyncio.wait([cut])
    await pages.write_from(SEVERAL[:1], content[2:3])
    assert (await pages.read(0) == content[2]).all()
    with pytest.raises(IndexError, match="12 of 12"):
        await pages.read(PAGES)


def host_memory() -> NDArray[np.uint8]:
    return np.zeros((len(SOME), 2 * LAYERS, BLOCK // LAYERS), np.uint8)


async def many(pages: DevicePages, memory: NDArray[np.uint8], pinned: bool) -> None:
    """Whole, and by layers; from and to rows that lie together and apart."""
    if pinned:
        pages.pin(memory)
    content = drawn(len(SOME), LAYERS, BLOCK // LAYERS)
    memory[:, ::2] = content
    for layer in range(LAYERS):
        await pages.write_layer(layer, SOME, memory[:, 2 * layer])
    together = np.zeros((len(SOME), BLOCK), np.uint8)
    await pages.read_into(SOME, together)
    assert (together == content.reshape(len(SOME), -1)).all()
    await pages.write_from(SOME[::-1], together)
    apart = memory.reshape(len(SOME), -1)[:, :BLOCK]
    await pages.read_into(SOME[::-1], apart)
    assert (apart == together).all()
    for layer in range(LAYERS):
        await pages.read_layer(layer, SOME[::-1], memory[:, layer])
    assert (memory[:, :LAYERS] == content).all()
    await pages.write_from(SOME[:0], together[:0])
    pages.unpin(memory)
    pages.unpin(memory)


async def there_and_back(pages: DevicePages) -> None:
    async with asyncio.timeout(30):
        await one_by_one(pages)
        await many(pages, host_memory(), pinned=False)
        await many(pages, host_memory(), pinned=True)


def test_pages_are_copied_beside_a_scheduler(device: Any) -> None:
    address = driver.allocate(PAGES * BLOCK)
    settings = SchedulerSettings(lanes=12, step_tokens=256, pages=64)
    schedulers: list[DeviceScheduler] = []
    pages = DevicePages(
        device, address, PAGES, BLOCK, LAYERS, free=lambda: all(scheduler.stopped for scheduler in schedulers)
    )
    with Rig(device, settings, own=DeviceSettings(deadline_s=40)) as rig:
        schedulers.append(rig.scheduler)
        client = rig.front_end(0, requests=100_000)
        rig.until(lambda: rig.scheduler.counters()["running"] > 0)
        asyncio.run(there_and_back(pages))
        client.kill()
        client.wait()
    pages.close()
    driver.free(address)
