"""The prefill side of a hand-over: the hit from the decode side's buffer (D2), the prompt's KV into it (D1, D3).

Where an engine waits for layers (D6) both go beside its steps (layer_sender.py). What is left then, or all, goes by
blocks when the prompt is computed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.kv_agent.buffer_opener import BufferOpener
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.handover import Handover, TransferFailed
from services.gpu_backend.kv_agent.layer_sender import FAILURES, LayerSender
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.prompt_buffer import PromptBuffer
from services.gpu_backend.kv_agent.shared import Shared
from services.gpu_backend.kv_agent.sources import LoadedThere, Source
from services.gpu_backend.layers import Pass
from services.gpu_backend.scheduler.orders import KvOrderKind

log = logging.getLogger(__name__)

BATCH_BYTES = 64 << 20
"""Of blocks that are moved by one call, at most; one block at least."""
LOOK_S = 10.0
"""Between two looks for memory of the dead when no table changes: who left it first, and died later (frozen, say)."""


class DecodeSide(Protocol):
    """The decode engines, of which a transfer's name tells one. Calls raise TransferFailed."""

    changed: asyncio.Event
    """Set, and replaced, when some came or went."""

    def lives(self, engine: int) -> bool:
        """By the engine's number."""
        ...

    async def open(self, transfer: int, block_bytes: int, machine: str) -> tuple[BufferPlace, range]:
        """The buffer, and which blocks of the hit are in it. machine: where this side reaches GPUs' memory; without one
        the buffer lies in host memory, also for who has been given another and asks again."""
        ...

    async def finish(self, transfer: int, first_token: int) -> None: ...


class Sender:
    """`run` it as a task. Every order that was submitted is answered within `transfer_s` of being begun; no page is
    touched after its answer but by a load that was answered at its first layer, which the lane's counter tells.

    A request that waits for the other side keeps no other one waiting; blocks are moved for `send_workers` at once.
    """

    def __init__(self, shared: Shared, decode_side: DecodeSide, by_layers: LayerSender | None = None) -> None:
        self._orders, self._kv_pages = shared.orders, shared.kv_pages
        self._counters, self._settings = shared.counters, shared.settings
        self._decode_side, self._by_layers = decode_side, by_layers
        self._opener = BufferOpener(shared.kv_pages, shared.layers, decode_side.lives)
        self._moving = asyncio.Semaphore(self._settings.send_workers)
        self._batch = max(1, BATCH_BYTES // self._kv_pages.block_bytes)
        self._arrivals: asyncio.Queue[Handover] = asyncio.Queue()  # bounded by the engine's lanes, as all here
        self._handovers: dict[tuple[int, int], Handover] = {}
        self._unanswered: dict[tuple[int, int], np.void] = {}

    # --- orders ---

    def expect(self, order: np.void) -> Handover:
        """The order's request is going to be handed over."""
        request = int(order["slot"]), int(order["generation"])
        if (handover := self._handovers.get(request)) is None:
            handover = self._handovers[request] = Handover(*request, int(order["lane"]), int(order["transfer"]))
            self._arrivals.put_nowait(handover)
            if self._by_layers:
                self._by_layers.begin(handover)
        return handover

    def submit(self, order: np.void) -> None:
        """A send; or a load of what the decode side reads."""
        handover = self.expect(order)
        self._unanswered[handover.request] = order
        handover.jobs.put_nowait(order)

    def forget(self, slot: int, generation: int) -> None:
        """The request has ended. Idempotent."""
        request = slot, generation
        if (handover := self._handovers.pop(request, None)) is not None:
            handover.ended = True
            if handover.task is not None:
                handover.task.cancel()
        if self._by_layers:
            self._by_layers.end(request, last=not self._handovers)

    def heard(self, passes: Sequence[Pass]) -> bool:
        """From the engine. True if an order is missing for a pass."""
        return self._by_layers is not None and self._by_layers.heard(self._handovers, passes)

    # --- a load whose blocks lie somewhere by now ---

    @property
    def brings(self) -> bool:
        """Whether `bring` may be called; else it is `bring_blocks`."""
        return self._by_layers is not None

    async def bring(
        self, order: np.void, pages: NDArray[np.uint32], sources: Sequence[Source], answer: Callable[[], None]
    ) -> None:
        """As LayerSender.bring."""
        assert self._by_layers
        await self._by_layers.bring(self.expect(order), pages, sources, answer)

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
            for batch in self._batches(range(source.first, source.end)):
                async with self._moving:
                    await source.bring_blocks(self._kv_pages, batch, pages[batch])
                self._counters.count(source.link, len(batch) * self._kv_pages.block_bytes)

    @property
    def left_bytes(self) -> int:
        """Of decode engines' memory, which their end did not give back."""
        return self._opener.left_bytes

    # --- life ---

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._let_go_of_the_dead())
                while True:
                    handover = await self._arrivals.get()
                    if not handover.ended:
                        handover.task = tasks.create_task(self._see_through(handover))
        finally:
            for order in list(self._unanswered.values()):
                self._answer(order, 0)
            self._opener.close()

    async def _let_go_of_the_dead(self) -> None:
        while True:
            changed = self._decode_side.changed
            await self._opener.let_go()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await changed.wait()

    async def _see_through(self, handover: Handover) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    job = await handover.jobs.get()
                    if isinstance(job, Pass):
                        assert self._by_layers
                        await self._by_layers.take_part(handover, job, self._opened)
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
                for batch in self._batches([at for at in range(len(pages)) if at not in handover.there]):
                    async with self._moving:
                        await buffer.blocks_from_pages(self._kv_pages, batch, pages[batch])
                    moved = len(batch) * self._kv_pages.block_bytes
                    self._counters.count(KvLink.PREFILL_PAGES_DECODE_BUFFER, moved)
                await buffer.settled()  # what was given up: the buffer may be another prompt's soon
                await self._decode_side.finish(handover.transfer, int(order["tokens"][0]))
            self._counters.prompts_sent += 1
            done = len(pages)
        except FAILURES as error:
            log.warning("a hand-over failed", extra={"slot": handover.request[0], "why": repr(error)})
        finally:
            self._answer(order, done)

    def _batches(self, blocks: Sequence[int]) -> list[list[int]]:
        return [list(blocks[at : at + self._batch]) for at in range(0, len(blocks), self._batch)]

    async def _opened(self, handover: Handover) -> PromptBuffer:
        async with handover.opening:
            if handover.buffer is None:
                handover.buffer, handover.hit = await self._opener.open(handover.transfer, self._decode_side.open)
                handover.there.update(handover.hit)
        return handover.buffer

    def _answer(self, order: np.void, blocks: int) -> None:
        """Once an order."""
        request = int(order["slot"]), int(order["generation"])
        if self._unanswered.get(request) is order:
            del self._unanswered[request]
            self._orders.answer_load(order, blocks)
