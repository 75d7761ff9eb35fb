"""The prefill side of a hand-over: the hit from the decode side's buffer (D2), the prompt's KV into it (D1, D3).

Where an engine waits for layers (D6) both go beside its steps: the hit ahead of the layer that attends to it, what is
computed while the next layer is. What is left then, or all, goes by blocks when the prompt is computed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.common.keys import BLOCK_TOKENS
from services.fabric.errors import FabricError
from services.fabric.transports import open_region
from services.gpu_backend.kv_agent.counters import AgentCounters
from services.gpu_backend.kv_agent.handover import Handover, PassLost, TransferFailed
from services.gpu_backend.kv_agent.layer_loads import LayerLoads
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.pages import LayerPages
from services.gpu_backend.kv_agent.remote_buffer import RemoteBuffer
from services.gpu_backend.kv_agent.settings import AgentSettings
from services.gpu_backend.kv_agent.shared import Shared
from services.gpu_backend.kv_agent.sources import LoadedThere, Source
from services.gpu_backend.layers import LayerCounters, Pass
from services.gpu_backend.scheduler.orders import KvOrderKind

log = logging.getLogger(__name__)

FAILURES = (TransferFailed, FabricError, TimeoutError, OSError)
UNKNOWN_S = 1.0
"""A pass in a window may be heard of so long before its request's order."""


class DecodeSide(Protocol):
    """The decode engine that a transfer's name tells. Both raise TransferFailed."""

    async def open(self, transfer: int, block_bytes: int) -> tuple[RegionDescriptor, range]:
        """The buffer, and which blocks of the hit are in it."""
        ...

    async def finish(self, transfer: int, first_token: int) -> None: ...


class ByLayers:
    """What a sender needs to move layers beside steps. Made only for pages and engines that can."""

    def __init__(
        self, kv_pages: LayerPages, layers: LayerCounters, counters: AgentCounters, settings: AgentSettings
    ) -> None:
        self.kv_pages, self.counters = kv_pages, layers
        self.windowed, self.resident = layers.windowed, kv_pages.resident
        self.loads = LayerLoads(kv_pages, layers, counters, settings.layers_s)


class Sender:
    """`run` it as a task. Every order that was submitted is answered within `transfer_s` of being begun; no page is
    touched after its answer but by a load that was answered at its first layer, which the lane's counter tells.

    A request that waits for the other side keeps no other one waiting; bytes are moved for `send_workers` at once.
    """

    def __init__(self, shared: Shared, decode_side: DecodeSide, by_layers: ByLayers | None = None) -> None:
        self._orders, self._kv_pages, self._layers = shared.orders, shared.kv_pages, shared.layers
        self._counters, self._settings = shared.counters, shared.settings
        self._decode_side, self._by_layers = decode_side, by_layers
        self._moving = asyncio.Semaphore(self._settings.send_workers)
        self._arrivals: asyncio.Queue[Handover] = asyncio.Queue()  # bounded by the engine's lanes, as all here
        self._handovers: dict[tuple[int, int], Handover] = {}
        self._unanswered: dict[tuple[int, int], np.void] = {}
        self._unclaimed: dict[tuple[int, int], Pass] = {}

    # --- orders ---

    def expect(self, order: np.void) -> Handover:
        """The order's request is going to be handed over."""
        request = int(order["slot"]), int(order["generation"])
        if (handover := self._handovers.get(request)) is None:
            handover = self._handovers[request] = Handover(*request, int(order["lane"]), int(order["transfer"]))
            self._arrivals.put_nowait(handover)
            if (early := self._unclaimed.pop(request, None)) is not None:
                self._enter(handover, early)
        return handover

    def submit(self, order: np.void) -> None:
        """A send; or a load of what the decode side reads."""
        handover = self.expect(order)
        self._unanswered[handover.request] = order
        handover.jobs.put_nowait(order)

    def forget(self, slot: int, generation: int) -> None:
        """The request has ended. Idempotent."""
        self._unclaimed.pop((slot, generation), None)
        if (handover := self._handovers.pop((slot, generation), None)) is not None:
            handover.ended = True
            if handover.task is not None:
                handover.task.cancel()

    def heard(self, passes: Sequence[Pass]) -> bool:
        """From the engine: a step begins, has computed a layer, or is over. True if an order is missing for one."""
        missing = False
        for one in passes:
            if (handover := self._handovers.get(one.request)) is not None:
                self._enter(handover, one)
                handover.changed()
            elif one.over:
                self._unclaimed.pop(one.request, None)
            else:
                missing |= self._keep_unclaimed(one)
        return missing

    def _enter(self, handover: Handover, one: Pass) -> None:
        if handover.last_pass is not one and self._by_layers:
            handover.last_pass = one
            handover.jobs.put_nowait(one)

    def _keep_unclaimed(self, one: Pass) -> bool:
        if self._unclaimed.get(one.request) is one:
            return False
        self._unclaimed[one.request] = one
        if self._by_layers and self._by_layers.windowed:
            asyncio.get_running_loop().call_later(UNKNOWN_S, self._refuse, one)
        return True

    def _refuse(self, one: Pass) -> None:
        """It belongs to no hand-over, so nobody would take its layers out of the window."""
        if self._unclaimed.get(one.request) is one and self._by_layers:
            del self._unclaimed[one.request]
            self._by_layers.counters.fail(one.lane)

    # --- a load whose blocks lie somewhere by now ---

    @property
    def brings(self) -> bool:
        """Whether `bring` may be called; else it is `bring_blocks`."""
        return self._by_layers is not None

    async def bring(
        self, order: np.void, pages: NDArray[np.uint32], sources: Sequence[Source], answer: Callable[[], None]
    ) -> None:
        """Brings the hit of a request in by layers; `answer` is called, maybe several times, from where its step may
        begin. Returns when the sources are done with. Raises FAILURES."""
        assert self._by_layers
        handover = self.expect(order)
        if self._by_layers.windowed:
            handover.sources = list(sources)
            answer()
            await handover.hit_taken.wait()
            return
        async with asyncio.timeout(self._settings.layers_s):
            await self._by_layers.loads.bring(handover.lane, pages, sources, _at_once, lambda layer: answer())

    async def there(self, order: np.void) -> LoadedThere:
        """What of the request's hit the decode side has read, once it has (D2, D15). Raises FAILURES."""
        handover = self.expect(order)
        async with asyncio.timeout(self._settings.transfer_s):
            buffer = await self._opened(handover)
        end = min(handover.hit.stop, int(order["block_count"]))
        return LoadedThere(buffer, min(handover.hit.start, end), end)

    async def bring_blocks(self, source: LoadedThere, pages: NDArray[np.uint32]) -> None:
        """As `bring`, without counters: block by block. Raises FAILURES."""
        async with asyncio.timeout(self._settings.transfer_s):
            for at in range(source.first, source.end):
                async with self._moving:
                    block = await source.fetch_block(at)
                await self._kv_pages.write(int(pages[at]), block)
                self._counters.count(source.link, block.nbytes)

    # --- life ---

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    handover = await self._arrivals.get()
                    if not handover.ended:
                        handover.task = tasks.create_task(self._see_through(handover))
        finally:
            for order in list(self._unanswered.values()):
                self._answer(order, 0)

    async def _see_through(self, handover: Handover) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    job = await handover.jobs.get()
                    if isinstance(job, Pass):
                        await self._take_part(handover, job)
                    elif job["kind"] == KvOrderKind.LOAD:
                        tasks.create_task(self._load(handover, job))
                    else:
                        await self._send(handover, job)
        finally:
            handover.hit_taken.set()
            if (order := self._unanswered.get(handover.request)) is not None:
                self._answer(order, 0)
            if handover.buffer is not None:
                await handover.buffer.close()

    async def _load(self, handover: Handover, order: np.void) -> None:
        """D2: the hit's blocks into pages."""
        pages = self._orders.pages_of(order)
        try:
            source = await self.there(order)
            if self._by_layers and source.end:
                await self.bring(order, pages[: source.end], [source], lambda: self._answer(order, source.end))
            else:
                await self.bring_blocks(source, pages)
                self._answer(order, source.end)
        except FAILURES as error:
            log.warning("a hit did not come over", extra={"slot": handover.request[0], "why": repr(error)})
        finally:
            self._answer(order, 0)

    async def _send(self, handover: Handover, order: np.void) -> None:
        """What the buffer lacks, then the word that it is whole."""
        done, pages = 0, self._orders.pages_of(order)
        try:
            async with asyncio.timeout(self._settings.transfer_s):
                buffer = await self._opened(handover)
                if buffer.blocks != len(pages):
                    raise TransferFailed(f"the buffer is not one of {len(pages)} blocks")
                for at in [at for at in range(len(pages)) if at not in handover.there]:
                    block = (await self._kv_pages.read(int(pages[at]))).copy()
                    async with self._moving:
                        await buffer.write_block(at, block)
                    self._counters.count(KvLink.PREFILL_PAGES_DECODE_BUFFER, block.nbytes)
                await self._decode_side.finish(handover.transfer, int(order["tokens"][0]))
            self._counters.prompts_sent += 1
            done = len(pages)
        except FAILURES as error:
            log.warning("a hand-over failed", extra={"slot": handover.request[0], "why": repr(error)})
        finally:
            self._answer(order, done)

    async def _opened(self, handover: Handover) -> RemoteBuffer:
        async with handover.opening:
            if handover.buffer is None:
                block_bytes = self._kv_pages.block_bytes
                descriptor, handover.hit = await self._decode_side.open(handover.transfer, block_bytes)
                region = await asyncio.to_thread(open_region, descriptor)
                handover.buffer = RemoteBuffer(region, self._layers, block_bytes)
                handover.there.update(handover.hit)
        return handover.buffer

    # --- a step that computes a part of the prompt (D6) ---

    async def _take_part(self, handover: Handover, one: Pass) -> None:
        handover.taken, handover.broken = 0, None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stream(handover, one))
            if self._by_layers and self._by_layers.windowed:
                tasks.create_task(self._feed(handover, one))

    async def _stream(self, handover: Handover, one: Pass) -> None:
        """Layers out of the pages into the decode side's buffer, as they are computed."""
        try:
            async with asyncio.timeout(self._settings.transfer_s):
                await self._stream_layers(handover, one)
            handover.completed(one)
        except (PassLost, *FAILURES) as error:
            log.warning("layers were not handed over", extra={"slot": one.slot, "why": repr(error)})
            handover.break_off(error)

    async def _stream_layers(self, handover: Handover, one: Pass) -> None:
        assert self._by_layers
        kv_pages, buffer = self._by_layers.kv_pages, await self._opened(handover)
        wanted = handover.lacking(one, self._by_layers.windowed)
        if wanted and wanted[-1] >= buffer.blocks:
            raise TransferFailed(f"the buffer has {buffer.blocks} blocks, the prompt more")
        for layer in range(self._layers):
            await handover.computed(one, layer)
            if wanted:
                blocks = await kv_pages.read_layer(layer, one.pages[wanted])
                async with self._moving:
                    await buffer.write_layer(layer, wanted, blocks)
                self._counters.count(KvLink.PREFILL_PAGES_DECODE_BUFFER, blocks.nbytes)
            handover.take_out(layer + 1)

    async def _feed(self, handover: Handover, one: Pass) -> None:
        """In a window: what is before the pass into the pages, each layer once there is room for it."""
        assert self._by_layers
        window = self._by_layers.resident
        try:
            sources = await self._before(handover, one)
            await self._by_layers.loads.bring(
                one.lane, one.pages, sources, lambda layer: handover.room(layer - window + 1), lambda layer: None
            )
        except FAILURES as error:
            log.warning("a window was not filled", extra={"slot": one.slot, "why": repr(error)})
        finally:
            handover.sources = []
            handover.hit_taken.set()

    async def _before(self, handover: Handover, one: Pass) -> Sequence[Source]:
        """Of the KV before the pass: the hit, or in the decode side's buffer all that earlier passes had."""
        assert self._by_layers
        if one.position == 0:
            return ()
        try:
            return handover.sources or [LoadedThere(await self._opened(handover), 0, -(-one.position // BLOCK_TOKENS))]
        except FAILURES:
            self._by_layers.counters.fail(one.lane)
            raise

    def _answer(self, order: np.void, blocks: int) -> None:
        """Once an order."""
        request = int(order["slot"]), int(order["generation"])
        if self._unanswered.get(request) is order:
            del self._unanswered[request]
            self._orders.answer_load(order, blocks)


async def _at_once(layer: int) -> None:
    """Pages that hold all layers have room for each."""
