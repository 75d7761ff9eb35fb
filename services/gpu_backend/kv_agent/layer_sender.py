"""The layer half of a hand-over (D6): the hit ahead of the layer that attends to it, and what is computed into the
decode side's buffer while the next layer is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from services.common.keys import BLOCK_TOKENS
from services.fabric.errors import FabricError
from services.gpu_backend.kv_agent.counters import AgentCounters
from services.gpu_backend.kv_agent.handover import Handover, PassLost, TransferFailed
from services.gpu_backend.kv_agent.layer_loads import LayerLoads
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.pages import LayerPages
from services.gpu_backend.kv_agent.prompt_buffer import PromptBuffer
from services.gpu_backend.kv_agent.settings import AgentSettings
from services.gpu_backend.kv_agent.sources import LoadedThere, Source
from services.gpu_backend.layers import LayerCounters, Pass

log = logging.getLogger(__name__)

OpenBuffer = Callable[[Handover], Awaitable[PromptBuffer]]
"""The buffer of a hand-over, opened once; raises FAILURES."""
FAILURES = (TransferFailed, FabricError, TimeoutError, OSError)
UNKNOWN_S = 1.0
"""A pass in a window may be heard of so long before its request's order."""


class LayerSender:
    """Beside the steps of an engine that counts layers. Used by a Sender, which knows the hand-overs, on its event
    loop."""

    def __init__(
        self, kv_pages: LayerPages, layers: LayerCounters, counters: AgentCounters, settings: AgentSettings
    ) -> None:
        self._kv_pages, self._layers, self._counters, self._settings = kv_pages, layers, counters, settings
        self._loads = LayerLoads(kv_pages, layers, counters, settings.layers_s)
        self._moving = asyncio.Semaphore(settings.send_workers)
        self._unclaimed: dict[int, Pass] = {}  # by slot: of its last request, whose order or end is to come

    # --- what the engine tells ---

    def heard(self, handovers: Mapping[tuple[int, int], Handover], passes: Sequence[Pass]) -> bool:
        """A step begins, has computed a layer, or is over. True if an order is missing for one."""
        missing = False
        for one in passes:
            if (handover := handovers.get(one.request)) is not None:
                _enter(handover, one)
                handover.changed()
            elif one.over and (self._layers.windowed or one.computed < self._kv_pages.layers):
                self._forget(one.request)
            else:
                missing |= self._keep_unclaimed(one)
        return missing

    def begin(self, handover: Handover) -> None:
        """From now on it is known whose passes these are."""
        self._layers.attend(True)
        if (early := self._forget(handover.request)) is not None:
            _enter(handover, early)

    def end(self, request: tuple[int, int], last: bool) -> None:
        """Of a hand-over, or of a request that may have passes. `last`: no other is under way."""
        self._forget(request)
        if last:
            self._layers.attend(False)

    def _keep_unclaimed(self, one: Pass) -> bool:
        if self._unclaimed.get(one.slot) is one:
            return False
        self._unclaimed[one.slot] = one
        if self._layers.windowed:
            asyncio.get_running_loop().call_later(UNKNOWN_S, self._refuse, one)
        return True

    def _refuse(self, one: Pass) -> None:
        """It belongs to no hand-over, so nobody would take its layers out of the window."""
        if self._unclaimed.get(one.slot) is one:
            del self._unclaimed[one.slot]
            self._layers.fail(one.lane)

    def _forget(self, request: tuple[int, int]) -> Pass | None:
        one = self._unclaimed.get(request[0])
        return self._unclaimed.pop(one.slot) if one is not None and one.request == request else None

    # --- into the pages ---

    async def bring(
        self, handover: Handover, pages: NDArray[np.uint32], sources: Sequence[Source], answer: Callable[[], None]
    ) -> None:
        """The hit of a request; `answer` is called, maybe several times, from where its step may begin. Returns when
        the sources are done with. Raises FAILURES."""
        if self._layers.windowed:
            handover.sources = list(sources)
            answer()
            await handover.hit_taken.wait()
            return
        async with asyncio.timeout(self._settings.layers_s):
            await self._loads.bring(handover.lane, pages, sources, _at_once, lambda layer: answer())

    # --- out of the pages, while a step computes a part of the prompt ---

    async def take_part(self, handover: Handover, one: Pass, opened: OpenBuffer) -> None:
        handover.taken, handover.broken = 0, None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stream(handover, one, opened))
            if self._layers.windowed:
                tasks.create_task(self._feed(handover, one, opened))

    async def _stream(self, handover: Handover, one: Pass, opened: OpenBuffer) -> None:
        """Layers out of the pages into the decode side's buffer, as they are computed."""
        try:
            async with asyncio.timeout(self._settings.transfer_s):
                await self._stream_layers(handover, one, await opened(handover))
            handover.completed(one)
        except (PassLost, *FAILURES) as error:
            log.warning("layers were not handed over", extra={"slot": one.slot, "why": repr(error)})
            handover.break_off(error)

    async def _stream_layers(self, handover: Handover, one: Pass, buffer: PromptBuffer) -> None:
        wanted = handover.lacking(one, self._layers.windowed)
        if wanted and wanted[-1] >= buffer.blocks:
            raise TransferFailed(f"the buffer has {buffer.blocks} blocks, the prompt more")
        for layer in range(self._kv_pages.layers):
            await handover.computed(one, layer)
            if wanted:
                async with self._moving:
                    await buffer.layer_from_pages(self._kv_pages, layer, wanted, one.pages[wanted])
                moved = len(wanted) * self._kv_pages.block_bytes // self._kv_pages.layers
                self._counters.count(KvLink.PREFILL_PAGES_DECODE_BUFFER, moved)
            handover.take_out(layer + 1)

    async def _feed(self, handover: Handover, one: Pass, opened: OpenBuffer) -> None:
        """In a window: what is before the pass into the pages, each layer once there is room for it."""
        window = self._kv_pages.resident
        try:
            sources = await self._before(handover, one, opened)
            await self._loads.bring(
                one.lane, one.pages, sources, lambda layer: handover.room(layer - window + 1), lambda layer: None
            )
        except FAILURES as error:
            log.warning("a window was not filled", extra={"slot": one.slot, "why": repr(error)})
        finally:
            handover.sources = []
            handover.hit_taken.set()

    async def _before(self, handover: Handover, one: Pass, opened: OpenBuffer) -> Sequence[Source]:
        """Of the KV before the pass: the hit, or in the decode side's buffer all that earlier passes had."""
        if one.position == 0:
            return ()
        try:
            if handover.sources:
                return handover.sources
            buffer, end = await opened(handover), -(-one.position // BLOCK_TOKENS)
            if end > buffer.blocks:
                raise TransferFailed(f"the buffer has {buffer.blocks} blocks, the prompt more")
            return [LoadedThere(buffer, 0, end)]
        except FAILURES:
            self._layers.fail(one.lane)
            raise


def _enter(handover: Handover, one: Pass) -> None:
    if handover.last_pass is not one:
        handover.last_pass = one
        handover.jobs.put_nowait(one)


async def _at_once(layer: int) -> None:
    """Pages that hold all layers have room for each."""
