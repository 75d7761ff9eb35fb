"""Loads: blocks from the store into pages, and always an answer (D1). The decode side may read a hit's end (D15).

A hit that fits a worker's buffer can go into the pages layer by layer, beside the step that needs it (D6), where an
engine waits for layers; else it goes by blocks, before the step.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.common import telemetry
from services.common.keys import BLOCK_TOKENS
from services.fabric.errors import FabricError
from services.gpu_backend.kv_agent.handover import TransferFailed
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.load_buffer import LoadBuffer
from services.gpu_backend.kv_agent.shared import Shared
from services.gpu_backend.kv_agent.sources import LoadedHere, LoadedThere, Source
from services.kvstore.client import StoreUnavailable

log = logging.getLogger(__name__)

WAITING = 4096
"""Loads that may wait for a worker; more are answered with 0 at once."""


@dataclass(slots=True, eq=False)
class Load:
    """`keys` are those of the blocks that are read here, which the request's own prompt begins with: no other block is
    accepted. The blocks of the hit behind them, if there are any, are read on the decode side."""

    order: np.void
    pages: NDArray[np.uint32]
    keys: list[bytes]
    deadline: float
    loaded: int = 0
    read: int = 0  # of them here
    unwanted: bool = False

    @property
    def request(self) -> tuple[int, int]:
        return int(self.order["slot"]), int(self.order["generation"])

    @property
    def tokens(self) -> int:
        return len(self.keys) * BLOCK_TOKENS

    @property
    def split(self) -> bool:
        return len(self.keys) < len(self.pages)


class Others(Protocol):
    """What of a Sender is used here; see there."""

    @property
    def brings(self) -> bool: ...

    async def bring(
        self, order: np.void, pages: NDArray[np.uint32], sources: Sequence[Source], answer: Callable[[], None]
    ) -> None: ...

    async def there(self, order: np.void) -> LoadedThere: ...

    async def bring_blocks(self, source: LoadedThere, pages: NDArray[np.uint32]) -> None: ...


class Loader:
    """`run` it as a task. Every load that was submitted is answered by its deadline, whatever happens to the
    store or to this task. No page is touched after its answer, but by layers, as the lane's counter tells.

    others  the way to the decode side, for requests that are handed over
    """

    def __init__(self, shared: Shared, others: Others | None = None) -> None:
        self._layers, self._others = shared.layers, others
        self._orders, self._kv_pages, self._client = shared.orders, shared.kv_pages, shared.client
        self._health, self._counters, self._settings = shared.health, shared.counters, shared.settings
        self._name, self._regions = f"kv.{shared.name}", shared.regions
        self._open: dict[tuple[int, int], Load] = {}
        self._queue: asyncio.Queue[Load] = asyncio.Queue(WAITING)

    @property
    def queued_tokens(self) -> int:
        """Tokens of loads that are not answered yet (read_q of D9)."""
        return sum(load.tokens for load in self._open.values())

    def submit(self, order: np.void, keys: list[bytes]) -> None:
        """Answers at once what needs no store."""
        deadline = time.monotonic() + self._settings.load_deadline_s
        load = Load(order, self._orders.pages_of(order), keys, deadline)
        self._counters.loads += 1
        self._open[load.request] = load
        if not keys or self._queue.full():
            self._answer(load)
        else:
            self._queue.put_nowait(load)

    def forget(self, slot: int, generation: int) -> None:
        """The request has ended: its load is answered with what is there already."""
        if (load := self._open.get((slot, generation))) is not None:
            load.unwanted = True

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as workers:
                for number in range(self._settings.load_workers):
                    workers.create_task(self._work(f"{self._name}.load{number}"))
        finally:
            for load in list(self._open.values()):
                self._answer(load)

    async def _work(self, name: str) -> None:
        block_bytes = self._kv_pages.block_bytes
        share = self._settings.load_buffer_bytes // self._settings.load_workers
        buffer = LoadBuffer(self._regions, name, max(1, share // block_bytes), block_bytes)
        try:
            while True:
                await self._serve(await self._queue.get(), buffer)
        finally:
            buffer.discard()

    async def _serve(self, load: Load, buffer: LoadBuffer) -> None:
        begun = time.monotonic()
        try:
            with telemetry.tracer.start_as_current_span("kv load") as span:
                async with asyncio.timeout(load.deadline - begun):
                    source = await self._read_for_layers(load, buffer)
                    if source is None:
                        await self._fill(load, buffer)
                        await self._fill_rest(load)
                    sources = await self._with_rest(load, source) if source is not None else []
                if sources and self._others:
                    end = sources[-1].end
                    await self._others.bring(load.order, load.pages, sources, lambda: self._answer_with(load, end))
                span.set_attributes({"blocks": load.loaded, "asked": len(load.pages)})
        except StoreUnavailable as error:
            self._health.failed(error)
        except (TimeoutError, OSError, FabricError, TransferFailed) as error:
            log.warning("a load was cut short", extra={"slot": load.request[0], "why": repr(error)})
        finally:
            self._answer(load)

    async def _read_for_layers(self, load: Load, buffer: LoadBuffer) -> Source | None:
        """The whole hit into the buffer; None if it does not fit, or is not wanted by layers."""
        brings = self._others is not None and self._others.brings and bool(load.order["transfer"])
        if not brings or load.unwanted or not self._health.available:
            return None
        count = min(len(load.keys), len(load.pages))
        if count > buffer.blocks:
            return None
        async with self._client.lease(load.keys, self._settings.load_deadline_s, self._settings.read_timeout_s) as hit:
            self._health.answered()
            got = await self._read(hit.lease_id, 0, min(hit.hit, count), buffer) if hit.hit else 0
        load.read = got
        return LoadedHere(buffer.by_layers(got, self._layers)) if got else None

    async def _fill(self, load: Load, buffer: LoadBuffer) -> None:
        """Reads batch after batch until all is there, or something is missing."""
        if load.unwanted or not self._health.available:
            return
        timeout_s = self._settings.read_timeout_s
        async with self._client.lease(load.keys, self._settings.load_deadline_s, timeout_s) as hit:
            self._health.answered()
            while load.loaded < min(hit.hit, len(load.keys)) and not load.unwanted:
                count = min(buffer.blocks, hit.hit - load.loaded)
                got = await self._read(hit.lease_id, load.loaded, count, buffer)
                for at in range(got):
                    await self._kv_pages.write(int(load.pages[load.loaded]), buffer.block(at))
                    self._counters.count(KvLink.PREFILL_BUFFER_PAGES, self._kv_pages.block_bytes)
                    load.loaded = load.read = load.loaded + 1
                    await asyncio.sleep(0)  # the event loop is shared
                if got < count:
                    return

    async def _with_rest(self, load: Load, source: Source) -> list[Source]:
        """And the decode side's part, where it follows without a gap."""
        if load.split and source.end == len(load.keys) and self._others:
            rest = await self._others.there(load.order)
            if rest.first == source.end < rest.end:
                return [source, rest]
            log.info("the decode side lacks its part", extra={"first": rest.first, "end": rest.end, "here": source.end})
        return [source]

    async def _fill_rest(self, load: Load) -> None:
        """The decode side's part by blocks, where it follows without a gap."""
        if load.split and load.loaded == len(load.keys) and self._others and not load.unwanted:
            rest = await self._others.there(load.order)
            if rest.first == load.loaded:
                await self._others.bring_blocks(rest, load.pages)
                load.loaded = rest.end

    async def _read(self, lease_id: int, first: int, count: int, buffer: LoadBuffer) -> int:
        target = buffer.descriptor()
        try:
            got = await self._client.read(
                lease_id, first, count, self._kv_pages.block_bytes, target, timeout_s=self._settings.read_timeout_s
            )
        except BaseException:
            buffer.discard()  # the store may still be writing
            raise
        self._counters.count(KvLink.STORE_PREFILL_BUFFER, got.blocks * self._kv_pages.block_bytes)
        if got.blocks < count:
            log.info("fewer blocks than expected", extra={"got": got.blocks, "asked": count, "why": got.reason})
        return got.blocks

    def _answer_with(self, load: Load, blocks: int) -> None:
        load.loaded = blocks
        self._answer(load)

    def _answer(self, load: Load) -> None:
        """Once a load: only what is open is answered."""
        if self._open.get(load.request) is not load:
            return
        del self._open[load.request]
        self._orders.answer_load(load.order, load.loaded)
        self._counters.blocks_loaded += load.read
        self._counters.bytes_loaded += load.read * self._kv_pages.block_bytes
        self._counters.loads_short += load.loaded < len(load.pages)
