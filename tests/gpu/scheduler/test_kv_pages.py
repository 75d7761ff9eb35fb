"""Pages of the GPU's memory in and out by copies, also while a scheduler that never ends is on the GPU."""

import asyncio
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="NOT RUN: CUDA's Python bindings are missing: pip install 'hostless[cuda]'")

from services.gpu_backend.device import driver
from services.gpu_backend.device.kv_pages import DevicePages
from services.gpu_backend.device.settings import DeviceSettings
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu.scheduler.rig import Rig

pytestmark = pytest.mark.gpu
PAGES, BLOCK = 12, 3 << 20


async def there_and_back(pages: DevicePages) -> None:
    content = np.random.default_rng(5).integers(0, 256, (PAGES, BLOCK), np.uint8)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        for page in range(PAGES):
            tasks.create_task(pages.write(page, content[page]))
    async with asyncio.timeout(30):
        for page in reversed(range(PAGES)):
            assert (await pages.read(page) == content[page]).all(), page
        cut = asyncio.create_task(pages.write(0, content[1]))
        await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([cut])
        await pages.write(0, content[2])
        assert (await pages.read(0) == content[2]).all()
    with pytest.raises(IndexError, match="12 of 12"):
        await pages.read(PAGES)


def test_pages_are_copied_beside_a_scheduler(device: Any) -> None:
    address = driver.allocate(PAGES * BLOCK)
    pages = DevicePages(device, address, PAGES, BLOCK)
    settings = SchedulerSettings(lanes=12, step_tokens=256, pages=64)
    with Rig(device, settings, own=DeviceSettings(deadline_s=40)) as rig:
        client = rig.front_end(0, requests=100_000)
        rig.until(lambda: rig.scheduler.counters()["running"] > 0)
        asyncio.run(there_and_back(pages))
        client.kill()
        client.wait()
    pages.close()
    driver.free(address)
