"""How quickly KV pages leave and enter a GPU's memory, by what moves and where it lies; and what pinning takes.

    python -m bench.gpu_pages OUT.json

A prompt of 2,000 tokens of Llama-3 8B: 32 pages of 8 MiB, 32 layers. Medians.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.fabric.region import MemoryRegion
from services.gpu_backend.device import driver
from services.gpu_backend.device.driver import Device
from services.gpu_backend.device.kv_pages import DevicePages

LAYERS, BLOCK, MOVED, POOL = 32, 8 << 20, 32, 96
REPEATS = 9


async def rate(move: Callable[[], Awaitable[None]], count: int) -> float:
    """GB/s."""
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        await move()
        seconds.append(time.perf_counter() - begun)
    return round(count / statistics.median(seconds[1:]) / 1e9, 2)


async def ways(
    pages: DevicePages, which: NDArray[np.uint32], view: NDArray[np.uint8], say: Callable[[str, float], None]
) -> None:
    blocks, layers = view.reshape(MOVED, BLOCK), view.reshape(MOVED, LAYERS, -1)

    async def out_by_layers() -> None:
        for layer in range(LAYERS):
            await pages.read_layer(layer, which, layers[:, layer])

    async def in_by_layers() -> None:
        for layer in range(LAYERS):
            await pages.write_layer(layer, which, layers[:, layer])

    say("out", await rate(lambda: pages.read_into(which, blocks), view.nbytes))
    say("in", await rate(lambda: pages.write_from(which, blocks), view.nbytes))
    say("out by layers", await rate(out_by_layers, view.nbytes))
    say("in by layers", await rate(in_by_layers, view.nbytes))


async def measure(device: Device, keep: Callable[[str, Any], None]) -> None:
    address = driver.allocate(POOL * BLOCK)
    pages = DevicePages(device, address, POOL, BLOCK, LAYERS)
    together = np.arange(MOVED, dtype=np.uint32)
    apart = np.random.default_rng(1).permutation(POOL)[:MOVED].astype(np.uint32)
    begun = time.perf_counter()
    region = MemoryRegion.create(f"gpu-pages-{time.time_ns()}", MOVED * BLOCK)
    keep("region of 256 MiB made, ms", round(1e3 * (time.perf_counter() - begun), 1))
    view = region.view
    for pinned in (False, True):
        if pinned:
            begun = time.perf_counter()
            pages.pin(view)
            keep("region pinned, ms", round(1e3 * (time.perf_counter() - begun), 1))
        where = "pinned" if pinned else "not pinned"
        for name, which in (("in a row", together), ("scattered", apart)):
            tag = f"{where}, pages {name}"
            await ways(pages, which, view, lambda way, value, tag=tag: keep(f"{tag}: {way}, GB/s", value))  # type: ignore[misc]
    one = view.reshape(MOVED, LAYERS, -1)[:, 0]
    seconds = []
    for _ in range(50):
        begun = time.perf_counter()
        await pages.read_layer(0, together[:1], one[:1])
        seconds.append(time.perf_counter() - begun)
    keep("a layer of one page out, us", round(1e6 * statistics.median(seconds)))
    pages.unpin(view)
    region.close()
    pages.close()
    driver.free(address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    device = Device()
    found: dict[str, Any] = {"gpu": device.name}

    def keep(name: str, value: Any) -> None:
        found[name] = value
        out.write_text(json.dumps(found, indent=1) + "\n")
        print(name, value, flush=True)

    asyncio.run(measure(device, keep))
    device.close()


if __name__ == "__main__":
    main()
