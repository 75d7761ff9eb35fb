"""Memory of a GPU that another process opens, and copies from and to, also beside a scheduler that never ends."""

import asyncio
import subprocess
import sys
from pathlib import Path
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
PAGES, LAYERS, BLOCK = 6, 4, 1 << 20

PEER = f"""
import asyncio, sys
import numpy as np
from services.gpu_backend.device import driver
from services.gpu_backend.device.driver import Device, NoDevice
from services.gpu_backend.device.kv_pages import DevicePages
try:
    device = Device(int(sys.argv[2]))
except NoDevice:
    print("no such device", flush=True)
    sys.exit()
pages = DevicePages(device, driver.allocate({PAGES} * {BLOCK}), {PAGES}, {BLOCK}, {LAYERS})
async def run():
    content = np.random.default_rng(9).integers(0, 256, ({PAGES}, {BLOCK}), np.uint8)
    numbers, base = np.arange({PAGES}, dtype=np.uint32), pages.reach(bytes.fromhex(sys.argv[1]))
    at = np.uint64(base) + np.arange({PAGES}, dtype=np.uint64)[::-1] * np.uint64({BLOCK})
    await pages.write_from(numbers, content)
    for layer in range({LAYERS}):
        await pages.push(layer, 1, numbers, at + np.uint64(layer * ({BLOCK} // {LAYERS})))
    await pages.pull(0, {LAYERS}, numbers[:2], at[:2][::-1])
    back = np.empty((2, {BLOCK}), np.uint8)
    await pages.read_into(numbers[:2], back)
    assert (back == content[:2][::-1]).all()
asyncio.run(asyncio.wait_for(run(), 30))
print("done", flush=True)
"""


@pytest.mark.parametrize("gpu", [0, 1])
def test_another_process_copies_layers_beside_a_scheduler(device: Any, gpu: int) -> None:
    pages = DevicePages(device, driver.allocate(PAGES * BLOCK), PAGES, BLOCK, LAYERS)
    shared = pages.share(PAGES)
    content = np.random.default_rng(9).integers(0, 256, (PAGES, BLOCK), np.uint8)
    settings = SchedulerSettings(lanes=12, step_tokens=256, pages=64)
    with Rig(device, settings, own=DeviceSettings(deadline_s=60)) as rig:
        client = rig.front_end(0, requests=100_000)
        rig.until(lambda: rig.scheduler.counters()["running"] > 0)
        command = [sys.executable, "-c", PEER, shared.handle.hex(), str(gpu)]
        peer = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=50)
        if peer.stdout == "no such device\n":
            client.kill()
            client.wait()
            pytest.skip("NOT RUN: there is one GPU; copies from GPU to GPU take two")
        assert peer.stdout == "done\n", peer.stderr

        async def fill() -> None:
            numbers = np.arange(PAGES, dtype=np.uint32)
            await pages.pull(
                0, LAYERS, numbers, np.uint64(shared.address) + numbers.astype(np.uint64) * np.uint64(BLOCK)
            )
            found = np.empty((PAGES, BLOCK), np.uint8)
            await pages.read_into(numbers, found)
            assert (found == content[::-1]).all()

        asyncio.run(asyncio.wait_for(fill(), 20))
        client.kill()
        client.wait()
    pages.close()
