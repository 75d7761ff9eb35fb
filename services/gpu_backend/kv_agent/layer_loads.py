"""KV into pages layer by layer, ahead of the step that needs it (D6)."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.kv_agent.counters import AgentCounters
from services.gpu_backend.kv_agent.pages import Blocks, LayerPages
from services.gpu_backend.kv_agent.sources import Source
from services.gpu_backend.layers import LayerCounters

AHEAD = 2
"""Layers that are fetched while one is written: so that there is always a next one for the way they come by."""


class LayerLoads:
    """`layer_s`: the longest that a layer may take from where it lies into the pages."""

    def __init__(self, kv_pages: LayerPages, layers: LayerCounters, counters: AgentCounters, layer_s: float) -> None:
        self._kv_pages, self._layers, self._counters, self._layer_s = kv_pages, layers, counters, layer_s

    async def bring(
        self,
        lane: int,
        pages: NDArray[np.uint32],
        sources: Sequence[Source],
        may_write: Callable[[int], Awaitable[None]],
        written: Callable[[int], None],
    ) -> None:
        """Block i of the sources into pages[i]. The next layers are fetched while one is written. Raises what a
        source or `may_write` raises, TimeoutError, OSError.

        may_write  returns when the layer's place in the pages is free, or raises
        written    is told of each layer after the lane's counter has been raised for it

        However this ends, nothing is written afterwards, and the lane's counter says so; it says failed where a step
        may wait already: from the first layer on, and in windows from the beginning.
        """
        last, done = self._kv_pages.layers - 1, 0
        self._layers.open(lane)
        ahead = deque(asyncio.ensure_future(_fetch(sources, layer)) for layer in range(min(AHEAD, last + 1)))
        try:
            for layer in range(last + 1):
                if layer + AHEAD <= last:
                    ahead.append(asyncio.ensure_future(_fetch(sources, layer + AHEAD)))
                async with asyncio.timeout(self._layer_s):
                    blocks = await ahead.popleft()
                await may_write(layer)
                await self._write(layer, pages, sources, blocks)
                done = layer + 1
                if layer < last:
                    self._layers.raise_to(lane, done)
                else:
                    self._layers.close(lane, done)
                written(layer)
        finally:
            if done <= last:
                self._layers.fail(lane) if done or self._layers.windowed else self._layers.close(lane, 0)
            for fetching in ahead:
                fetching.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _write(
        self, layer: int, pages: NDArray[np.uint32], sources: Sequence[Source], fetched: Sequence[Blocks | None]
    ) -> None:
        for source, part in zip(sources, fetched, strict=True):
            if source.end > source.first:
                await source.write(layer, part, self._kv_pages, pages[source.first : source.end])
                layer_bytes = self._kv_pages.block_bytes // self._kv_pages.layers
                self._counters.count(source.link, (source.end - source.first) * layer_bytes)


async def _fetch(sources: Sequence[Source], layer: int) -> list[Blocks | None]:
    return list(await asyncio.gather(*(source.fetch(layer) for source in sources)))
