"""The decode side of a hand-over: a buffer for each prompt that is prefilled elsewhere, then its pages (D1-D3)."""

import asyncio
import logging
from collections.abc import Callable

import numpy as np

from services.fabric.gate import this_machine
from services.gpu_backend.kv_agent.buffer_memory import LargerThanAll
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.hit_reader import HitReader
from services.gpu_backend.kv_agent.inbound import Inbound, UnknownTransfer, unless_gone
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.load_buffer import LoadBuffer
from services.gpu_backend.kv_agent.receive_buffers import ReceiveBuffers
from services.gpu_backend.kv_agent.shared import Shared

log = logging.getLogger(__name__)

MOST_TOKENS = 2**32 - 1
"""Of a vocabulary: an order's answer is a u32."""
FILL_BYTES = 64 << 20
"""Of blocks that go into pages by one call, at most; one block at least."""


class Receiver:
    """`run` it as a task. An order is answered once, never after its request's end, and by `run`'s end at the latest.

    Prompts get memory, and are read from the store, in the order in which they are expected. The prefill side has them
    in about the same order, so whoever is first there has its memory here, and none waits in a circle.

    Each prompt has a buffer of its own, which ends with it: a prefill engine that writes late finds its right ended,
    never another prompt's bytes (receive_buffers.py).
    """

    def __init__(self, shared: Shared, filled: Callable[[], None] = lambda: None) -> None:
        """filled: called when a prompt is whole, so that the order to fill its pages will come."""
        self._filled = filled
        self._orders, self._kv_pages, self._held = shared.orders, shared.kv_pages, shared.held
        self._counters, self._settings = shared.counters, shared.settings
        self._name, self._regions = f"kv.{shared.name}.receive", shared.regions
        self._buffers = ReceiveBuffers(shared.kv_pages, shared.regions, self._name, self._settings)
        self.memory = self._buffers.memory
        self._hits = HitReader(shared, self._buffers)
        self._by_name: dict[int, Inbound] = {}
        self._by_request: dict[tuple[int, int], Inbound] = {}
        self._news = asyncio.Event()  # set, and replaced, when a prompt is expected
        self._reads: asyncio.Queue[Inbound] = asyncio.Queue()  # bounded by the engine's lanes
        self._fills: asyncio.Queue[tuple[np.void, Inbound]] = asyncio.Queue()  # bounded by the engine's lanes

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait to be read from the store, or are being read (read_q of D9). For any thread."""
        return sum(inbound.unread_tokens for inbound in list(self._by_request.values()))

    @property
    def late_bytes(self) -> int:
        """As ReceiveBuffers."""
        return self._buffers.late_bytes

    # --- orders ---

    def expect(self, order: np.void, keys: list[bytes], reads: range) -> None:
        """`keys` are those of the hit, and `reads` what of it is to be read here."""
        held = len(reads[: max(0, self._held.run(keys[: reads.stop]) - reads.start)])
        inbound = Inbound(order, keys, reads, int(order["block_count"]), held)
        self._by_request[inbound.request] = inbound
        if inbound.name in self._by_name:
            self._lose(inbound, "its name is taken")
            return
        self._by_name[inbound.name] = inbound
        try:
            inbound.share = self.memory.ask(inbound.blocks * self._kv_pages.block_bytes)
        except LargerThanAll as error:
            self._lose(inbound, str(error))
            return
        if reads:
            self._reads.put_nowait(inbound)
        else:
            inbound.hit.set_result(0)
        self._news.set()
        self._news = asyncio.Event()

    def fill(self, order: np.void) -> bool:
        """Fills a request's pages from its buffer, and answers; False if it wasn't received here."""
        inbound = self._by_request.get((int(order["slot"]), int(order["generation"])))
        if inbound is None:
            return False
        self._fills.put_nowait((order, inbound))
        return True

    def forget(self, slot: int, generation: int) -> None:
        """The request has ended. Idempotent."""
        if (inbound := self._by_request.pop((slot, generation), None)) is not None:
            inbound.answered = True
            self._free(inbound)

    # --- the prefill side's calls ---

    async def open(self, name: int, block_bytes: int, machine: str) -> tuple[BufferPlace, range]:
        """The prompt's buffer, and which blocks of its hit are in it. `machine`: where the caller can reach other GPUs'
        memory, or nothing: who was given such memory in vain asks once more. Raises UnknownTransfer, OSError."""
        inbound = await self._expected(name)
        again = inbound.opened and not machine and inbound.buffer is not None and inbound.buffer.place.on_device
        if (inbound.opened and not again) or block_bytes != self._kv_pages.block_bytes:
            raise UnknownTransfer(f"transfer {name:#x} is open already, or has other blocks than {block_bytes} bytes")
        inbound.opened = True
        try:
            if not (await self._granted(inbound) and await unless_gone(inbound, inbound.hit)):
                raise UnknownTransfer(f"transfer {name:#x} has ended")
            hit = inbound.reads[: inbound.hit.result()]
            if (await inbound.buffer_in(self._buffers)).place.on_device and machine != this_machine():
                await self._move_to_host(inbound, hit)
            buffer = await inbound.buffer_in(self._buffers)
            if inbound.give_up is None:
                loop, patience_s = asyncio.get_running_loop(), self._settings.transfer_s
                inbound.give_up = loop.call_later(patience_s, self._lose, inbound, "nothing came in time")
            return buffer.place, hit
        except BaseException as error:
            self._lose(inbound, repr(error))
            raise

    def finish(self, name: int, first_token: int) -> None:
        """All is in the buffer. Raises UnknownTransfer."""
        inbound = self._by_name.get(name)
        if inbound is None or inbound.buffer is None or inbound.answered:
            raise UnknownTransfer(f"nobody waits for transfer {name:#x} any more")
        if not 0 <= first_token < MOST_TOKENS:  # the answer is the number after it
            raise UnknownTransfer(f"transfer {name:#x} begins with token {first_token}, which is none")
        self._settle(inbound)
        self._orders.answer_load(inbound.order, first_token + 1)
        self._counters.prompts_received += 1
        self._filled()

    # --- life ---

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as workers:
                workers.create_task(self._buffers.run())
                workers.create_task(self._fill_all())
                for number in range(self._settings.load_workers):
                    workers.create_task(self._read_all(f"{self._name}.load{number}"))
        finally:
            while not self._fills.empty():
                self._orders.answer_load(self._fills.get_nowait()[0], 0)
            for inbound in list(self._by_request.values()):
                self._lose(inbound, "the engine stops")
            await self._buffers.close()

    async def _fill_all(self) -> None:
        while True:
            await self._fill(*await self._fills.get())

    async def _read_all(self, name: str) -> None:
        block_bytes = self._kv_pages.block_bytes
        share = self._settings.load_buffer_bytes // self._settings.load_workers
        on_the_way = LoadBuffer(self._regions, name, max(1, share // block_bytes), block_bytes)
        try:
            while True:
                inbound = await self._reads.get()
                hit = await self._hits.read(inbound, on_the_way) if await self._has_memory(inbound) else 0
                inbound.hit.set_result(hit)
        finally:
            on_the_way.discard()

    async def _has_memory(self, inbound: Inbound) -> bool:
        try:
            return await self._granted(inbound)
        except OSError as error:
            self._lose(inbound, repr(error))
            return False

    async def _granted(self, inbound: Inbound) -> bool:
        """Once there is memory for it; False if it has ended before. Raises OSError."""
        if inbound.share is None or not await unless_gone(inbound, inbound.share.granted):
            return False
        await self._buffers.ready()
        return not inbound.gone.done()

    async def _fill(self, order: np.void, inbound: Inbound) -> None:
        filled, block_bytes = 0, self._kv_pages.block_bytes
        batch = max(1, FILL_BYTES // block_bytes)
        try:
            pages = self._orders.pages_of(order)
            while inbound.buffer is not None and filled < len(pages):
                part = pages[filled : filled + batch]
                await inbound.buffer.to_pages(filled, part)
                await self._hold(inbound, filled, filled + len(part))
                filled += len(part)
        except OSError as error:
            log.warning("a prompt did not get into its pages", extra={"slot": inbound.request[0], "why": repr(error)})
        finally:
            self._counters.count(KvLink.DECODE_BUFFER_PAGES, filled * block_bytes)
            self._orders.answer_load(order, filled)
            self._free(inbound)

    async def _hold(self, inbound: Inbound, first: int, end: int) -> None:
        """Of these blocks those of the hit: the others come when they are offered to the store."""
        for at in range(first, min(end, len(inbound.keys))):
            key, parent = inbound.keys[at], inbound.keys[at - 1] if at else None
            if inbound.buffer is None or not self._held.lacks(key, parent):
                continue
            if (blocks := inbound.buffer.view(at, 1)) is None:
                blocks = np.empty((1, self._kv_pages.block_bytes), np.uint8)
                await inbound.buffer.get(at, blocks)
            self._held.put(key, parent, blocks[0])
            await asyncio.sleep(0)  # the event loop is shared

    async def _expected(self, name: int) -> Inbound:
        """The prefill engine may have heard of a request before this agent has."""
        try:
            async with asyncio.timeout(self._settings.peer_wait_s):
                while (inbound := self._by_name.get(name)) is None:
                    await self._news.wait()
        except TimeoutError:
            raise UnknownTransfer(f"no request waits for transfer {name:#x}") from None
        return inbound

    async def _move_to_host(self, inbound: Inbound, hit: range) -> None:
        """For a prefill side that can't reach this GPU's memory. The share stays, so that this is bounded too."""
        there = await inbound.buffer_in(self._buffers)
        here = await self._buffers.of_its_own(inbound.blocks, there)
        try:
            if hit:
                await there.get(hit.start, here.view(hit.start, len(hit)))
            if await inbound.buffer_in(self._buffers) is not there:
                raise UnknownTransfer(f"transfer {inbound.name:#x} is being moved already")
        except BaseException:
            here.end()
            raise
        inbound.buffer = here
        there.end()

    def _lose(self, inbound: Inbound, why: str) -> None:
        if not inbound.answered:
            log.warning("a prompt's KV did not come", extra={"slot": inbound.request[0], "why": why})
            self._orders.answer_load(inbound.order, 0)
        self._free(inbound)

    def _settle(self, inbound: Inbound) -> None:
        """No more calls of the prefill side; the buffer stays."""
        inbound.answered = True
        if self._by_name.get(inbound.name) is inbound:
            del self._by_name[inbound.name]
        if inbound.give_up is not None:
            inbound.give_up.cancel()

    def _free(self, inbound: Inbound) -> None:
        """Gives everything back. Idempotent."""
        self._settle(inbound)
        if not inbound.gone.done():
            inbound.gone.set_result(None)
        if inbound.share is not None:
            self._buffers.let_go(inbound.buffer, inbound.share)
            inbound.buffer = inbound.share = None
