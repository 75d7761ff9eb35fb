"""The decode side's buffer of one prompt, as the prefill side reaches it: Layer Blocks (D5) by one-sided operations."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from services.fabric.operations import TrafficClass
from services.fabric.remote_region import RemoteRegion
from services.gpu_backend.kv_agent.pages import Blocks

KV = TrafficClass.KV


class RemoteBuffer:
    """All calls raise FabricError. What a caller gives up goes on in its thread, with memory that is nobody else's;
    `close` waits for that, as long as the transport may take."""

    def __init__(self, region: RemoteRegion, layers: int, block_bytes: int) -> None:
        self.layers = layers
        self.blocks = region.descriptor.length // block_bytes
        self._region, self._block_bytes, self._layer_bytes = region, block_bytes, block_bytes // layers
        self._moving: set[asyncio.Future[None]] = set()

    async def read_layer(self, layer: int, blocks: Sequence[int]) -> Blocks:
        """u8[blocks, layer_bytes]."""
        into = np.empty((len(blocks), self._layer_bytes), np.uint8)
        at = self._places(blocks, [layer])
        await self._move(lambda: self._region.gather(at, self._lengths(at), into, KV))
        return into

    async def write_layer(self, layer: int, blocks: Sequence[int], data: Blocks) -> None:
        """From u8[blocks, layer_bytes], which is left alone from then on."""
        at = self._places(blocks, [layer])
        await self._move(lambda: self._region.scatter(at, self._lengths(at), data, KV))

    async def read_block(self, block: int) -> Blocks:
        """u8[block_bytes]: its layers are pieces of their own, posted together."""
        into = np.empty(self._block_bytes, np.uint8)
        at = self._places([block], range(self.layers))
        await self._move(lambda: self._region.gather(at, self._lengths(at), into, KV))
        return into

    async def write_block(self, block: int, data: Blocks) -> None:
        """As read_block."""
        at = self._places([block], range(self.layers))
        await self._move(lambda: self._region.scatter(at, self._lengths(at), data, KV))

    async def close(self) -> None:
        if self._moving:
            await asyncio.wait(self._moving)
        self._region.close()

    def _places(self, blocks: Sequence[int], layers: Sequence[int]) -> NDArray[np.uint64]:
        begins = np.array(blocks, np.uint64)[:, None] * np.uint64(self._block_bytes)
        return (begins + np.array(layers, np.uint64) * np.uint64(self._layer_bytes)).reshape(-1)

    def _lengths(self, at: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return np.full(len(at), self._layer_bytes, np.uint64)

    def _ended(self, moving: asyncio.Future[None]) -> None:
        self._moving.discard(moving)
        if not moving.cancelled():
            moving.exception()  # what nobody waits for any more may fail

    async def _move(self, work: Callable[[], None]) -> None:
        moving = asyncio.ensure_future(asyncio.to_thread(work))
        self._moving.add(moving)
        moving.add_done_callback(self._ended)
        await asyncio.shield(moving)
