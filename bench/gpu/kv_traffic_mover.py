"""KV traffic beside an engine's steps, for bench/gpu_kv_traffic.py: the agent's own copies, over and over.

In the engine's process it moves what a decode engine's agent moves; as a process of its own, on another GPU, what a
prefill engine's agent moves to and from that one's memory (`python -m bench.gpu.kv_traffic_mover GPU BLOCKS BLOCK_BYTES
LAYERS HANDLE`, then a line a command).
"""

import asyncio
import json
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.gpu_backend.device import driver
from services.gpu_backend.device.driver import Device
from services.gpu_backend.device.kv_pages import DevicePages


@dataclass
class Moved:
    kind: str
    count: int = 0
    seconds: float = 0.0


class Mover:
    """Pages and buffers of its own, as large as a prompt. Verbs: start, stop. Made before a scheduler starts.

    in, out      pinned host memory into pages, and back
    near         another part of this GPU's memory into pages: a buffer there into pages (D3)
    give, take   pages to and from memory behind a handle: another process's, maybe of another GPU
    """

    def __init__(self, device: Device, blocks: int, block_bytes: int, layers: int, handle: bytes = b"") -> None:
        self.pages = DevicePages(device, driver.allocate(blocks * block_bytes), blocks, block_bytes, layers)
        self._buffer = self.pages.share(blocks)
        self.handle = self._buffer.handle
        self._far = self.pages.reach(handle) if handle else self._buffer.address
        self._host = np.zeros((blocks, block_bytes), np.uint8)
        self.pages.pin(self._host)
        self._numbers = np.arange(blocks, dtype=np.uint32)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.moved = Moved("")

    def start(self, kind: str, by_layers: bool, rate: float) -> None:
        """rate: bytes a second at most; 0: as fast as it goes."""
        self.moved = Moved(kind)
        self._over.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(kind, by_layers, rate)))
        self._thread.start()

    def stop(self) -> float:
        """GB/s."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(20)
        return self.moved.count / max(self.moved.seconds, 1e-9) / 1e9

    async def _run(self, kind: str, by_layers: bool, rate: float) -> None:
        begin = time.perf_counter()
        while not self._over.is_set():
            for layer in range(self.pages.layers if by_layers else 1):
                self.moved.count += await self._one(kind, layer if by_layers else None)
                self.moved.seconds = time.perf_counter() - begin
                if rate and (ahead := self.moved.count / rate - self.moved.seconds) > 0:
                    await asyncio.sleep(ahead)

    async def _one(self, kind: str, layer: int | None) -> int:
        pages, numbers = self.pages, self._numbers
        layer_bytes = pages.block_bytes // pages.layers
        first, count = (0, pages.layers) if layer is None else (layer, 1)
        rows = self._host[:, first * layer_bytes : (first + count) * layer_bytes]
        step = np.arange(len(numbers), dtype=np.uint64) * np.uint64(pages.block_bytes) + np.uint64(first * layer_bytes)
        match kind:
            case "in":
                await (pages.write_from(numbers, rows) if layer is None else pages.write_layer(layer, numbers, rows))
            case "out":
                await (pages.read_into(numbers, rows) if layer is None else pages.read_layer(layer, numbers, rows))
            case "near":
                await pages.pull(first, count, numbers, step + np.uint64(self._buffer.address))
            case "give":
                await pages.push(first, count, numbers, step + np.uint64(self._far))
            case "take":
                await pages.pull(first, count, numbers, step + np.uint64(self._far))
        return len(numbers) * count * layer_bytes


def obey(mover: Mover, words: list[str]) -> dict[str, Any]:
    """traffic KIND BY_LAYERS RATE, or quiet."""
    if words[0] == "traffic":
        mover.start(words[1], words[2] == "1", float(words[3]))
        return {}
    return {"gb_s": round(mover.stop(), 1)}


def main() -> None:
    gpu, blocks, block_bytes, layers = map(int, sys.argv[1:5])
    mover = Mover(Device(gpu), blocks, block_bytes, layers, bytes.fromhex(sys.argv[5]))
    print(json.dumps({}), flush=True)
    try:
        for line in sys.stdin:
            print(json.dumps(obey(mover, line.split())), flush=True)
    finally:
        mover.stop()


if __name__ == "__main__":
    main()
