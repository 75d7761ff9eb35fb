"""Loads: blocks from the store into pages, and always an answer (D1). The decode side may read a hit's end (D15). What
this engine still holds of a hit is not read.

A hit that fits a worker's buffer can go into the pages layer by layer, beside the step that needs it (D6), where an
engine waits for layers; else it goes by blocks, before the step.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.common import telemetry
from services.common.keys import BLOCK_TOKENS
from services.fabric.errors import FabricError
from services.gpu_backend.kv_agent.handover import TransferFailed
from services.gpu_backend.kv_agent.held import Run
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.load_buffer import LoadBuffer
from services.gpu_backend.kv_agent.pages import Blocks
from services.gpu_backend.kv_agent.shared import Shared
from services.gpu_backend.kv_agent.sources import HeldHere, LoadedHere, LoadedThere, Source
from services.kvstore.client import Hit, StoreUnavailable

log = logging.getLogger(__name__)

WAITING = 4096
"""Loads that may wait for a worker; more are answered with 0 at once."""


@dataclass(slots=True, eq=False)
class Load:
    """`keys` are those of the blocks that are read here, which the request's own prompt begins with: no other block is
    accepted. The blocks of the hit behind them, if there are any, are read on the decode side. `held`: of them, when it
    was submitted."""

    order: np.void
    pages: NDArray[np.uint32]
    keys: list[bytes]
    deadline: float
    held: int
    loaded: int = 0
    read: int = 0  # of them here, from the store
    unwanted: bool = False
    expiry: asyncio.TimerHandle | None = None  # while it waits for a worker

    @property
    def request(self) -> tuple[int, int]:
        return int(self.order["slot"]), int(self.order["generation"])

    @property
    def unread_tokens(self) -> int:
        return (len(self.keys) - self.held) * BLOCK_TOKENS

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
        self._held = shared.held
        self._name, self._regions = f"kv.{shared.name}", shared.regions
        self._open: dict[tuple[int, int], Load] = {}
        self._queue: asyncio.Queue[Load] = asyncio.Queue(WAITING)

    @property
    def queued_tokens(self) -> int:
        """Tokens to be read for loads that are not answered yet (read_q of D9). For any thread."""
        return sum(load.unread_tokens for load in list(self._open.values()))

    def submit(self, order: np.void, keys: list[bytes]) -> None:
        """Answers at once what needs no store."""
        deadline = time.monotonic() + self._settings.load_deadline_s
        load = Load(order, self._orders.pages_of(order), keys, deadline, self._held.run(keys))
        self._counters.loads += 1
        self._open[load.request] = load
        if not keys or self._queue.full():
            self._answer(load)
        else:
            self._queue.put_nowait(load)
            load.expiry = asyncio.get_running_loop().call_later(self._settings.load_deadline_s, self._expire, load)

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
        if load.expiry is not None:
            load.expiry.cancel()
        if self._open.get(load.request) is not load:
            return
        begun = time.monotonic()
        try:
            with telemetry.tracer.start_as_current_span("kv load") as span, self._held.pinned(load.keys) as run:
                async with asyncio.timeout(load.deadline - begun):
                    sources = await self._read_for_layers(load, buffer, run)
                    if sources:
                        sources = await self._with_rest(load, sources)
                    else:
                        await self._fill(load, buffer, run)
                        await self._fill_rest(load)
                if sources and self._others:
                    end = sources[-1].end
                    await self._others.bring(load.order, load.pages, sources, lambda: self._answer_with(load, end))
                    self._counters.blocks_reused += len(run)
                    await self._hold_all(load, buffer, len(run))
                span.set_attributes({"blocks": load.loaded, "asked": len(load.pages)})
        except StoreUnavailable as error:
            self._health.failed(error)
        except (TimeoutError, OSError, FabricError, TransferFailed) as error:
            log.warning("a load was cut short", extra={"slot": load.request[0], "why": repr(error)})
        finally:
            self._answer(load)

    async def _read_for_layers(self, load: Load, buffer: LoadBuffer, run: Run) -> list[Source]:
        """What is held, and the rest in the buffer; nothing if that does not fit, or is not wanted by layers."""
        brings = self._others is not None and self._others.brings and bool(load.order["transfer"])
        if not brings or load.unwanted or len(load.keys) - len(run) > buffer.blocks:
            return []
        sources: list[Source] = [HeldHere(run, self._layers)] if len(run) else []
        if self._needs_store(load, len(run)):
            async with self._lease(load) as hit:
                count = min(hit.hit, len(load.keys)) - len(run)
                load.read = await self._read(hit.lease_id, len(run), count, buffer) if count > 0 else 0
        if load.read:
            sources.append(LoadedHere(buffer.by_layers(load.read, self._layers), len(run)))
        return sources

    async def _fill(self, load: Load, buffer: LoadBuffer, run: Run) -> None:
        """What is held, then batch after batch from the store until all is there, or something is missing."""
        for at in range(len(run)):
            if load.unwanted:
                return
            await self._write(load, run.block(at)[None], KvLink.HELD_PREFILL_PAGES)
            self._counters.blocks_reused += 1
        if load.unwanted or not self._needs_store(load, load.loaded):
            return
        async with self._lease(load) as hit:
            while load.loaded < min(hit.hit, len(load.keys)) and not load.unwanted:
                count = min(buffer.blocks, hit.hit - load.loaded)
                got = await self._read(hit.lease_id, load.loaded, count, buffer)
                for at in range(got):
                    self._hold(load, load.loaded + at, buffer.block(at))
                    await asyncio.sleep(0)  # the event loop is shared
                if got:
                    await self._write(load, buffer.first(got), KvLink.PREFILL_BUFFER_PAGES)
                load.read += got
                if got < count:
                    return

    def _needs_store(self, load: Load, held: int) -> bool:
        return held < len(load.keys) and self._health.available

    @asynccontextmanager
    async def _lease(self, load: Load) -> AsyncIterator[Hit]:
        async with self._client.lease(load.keys, self._settings.load_deadline_s, self._settings.read_timeout_s) as hit:
            self._health.answered()
            yield hit

    async def _write(self, load: Load, blocks: Blocks, link: KvLink) -> None:
        """The load's next blocks, u8[blocks, block_bytes], into their pages."""
        end = load.loaded + len(blocks)
        await self._kv_pages.write_from(load.pages[load.loaded : end], blocks)
        self._counters.count(link, blocks.nbytes)
        load.loaded = end

    def _hold(self, load: Load, at: int, block: Blocks) -> None:
        self._held.put(load.keys[at], load.keys[at - 1] if at else None, block)

    async def _hold_all(self, load: Load, buffer: LoadBuffer, first: int) -> None:
        """What was read, which begins at block `first`."""
        for at in range(load.read):
            self._hold(load, first + at, buffer.block(at))
            await asyncio.sleep(0)  # the event loop is shared

    async def _with_rest(self, load: Load, sources: list[Source]) -> list[Source]:
        """And the decode side's part, where it follows without a gap."""
        end = sources[-1].end
        if load.split and end == len(load.keys) and self._others:
            rest = await self._others.there(load.order)
            if rest.first == end < rest.end:
                return [*sources, rest]
            log.info("the decode side lacks its part", extra={"first": rest.first, "end": rest.end, "here": end})
        return sources

    async def _fill_rest(self, load: Load) -> None:
        """The decode side's part by blocks, where it follows without a gap."""
        if load.split and load.loaded == len(load.keys) and self._others and not load.unwanted:
            rest = await self._others.there(load.order)
            if rest.first == load.loaded:
                await self._others.bring_blocks(rest, load.pages)
                load.loaded = rest.end

    async def _read(self, lease_id: int, first: int, count: int, buffer: LoadBuffer) -> int:
        target = await buffer.descriptor()
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

    def _expire(self, load: Load) -> None:
        log.warning("a load found no worker in time", extra={"slot": load.request[0]})
        self._answer(load)

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
