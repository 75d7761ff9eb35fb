"""The decode side of a hand-over: a buffer for each prompt that is prefilled elsewhere, then its pages (D1-D3)."""

import asyncio
import logging
import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.common.keys import BLOCK_TOKENS
from services.fabric.region import MemoryRegion
from services.fabric.rights import Rights
from services.gpu_backend.kv_agent.buffer_memory import BufferMemory, LargerThanAll, Share
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.shared import Shared
from services.kvstore.client import StoreUnavailable

log = logging.getLogger(__name__)


class UnknownTransfer(Exception):
    """No request waits under this name, or not any more."""


@dataclass(slots=True, eq=False)
class Inbound:
    """A prompt that is expected. This side reads the blocks `reads` from the store, some or all of the hit (D2, D15);
    `keys` are those of all the hit's blocks. `held`: of `reads`, when it was expected."""

    order: np.void
    keys: list[bytes]
    reads: range
    blocks: int
    held: int
    share: Share | None = None
    region: MemoryRegion | None = None
    opened: bool = False
    answered: bool = False
    give_up: asyncio.TimerHandle | None = None
    hit: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """How many of `reads` are in the buffer, once they are read."""
    gone: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def unread_tokens(self) -> int:
        return 0 if self.hit.done() else (len(self.reads) - self.held) * BLOCK_TOKENS

    @property
    def name(self) -> int:
        return int(self.order["transfer"])

    @property
    def request(self) -> tuple[int, int]:
        return int(self.order["slot"]), int(self.order["generation"])


class Receiver:
    """`run` it as a task. An order is answered once, never after its request's end, and by `run`'s end at the latest.

    Prompts get memory, and are read from the store, in the order in which they are expected. The prefill side has them
    in about the same order, so whoever is first there has its memory here, and none waits in a circle.

    Each prompt has a region of its own, which ends with it: a prefill engine that writes late finds its right
    ended, never another prompt's bytes.
    """

    def __init__(self, shared: Shared) -> None:
        self._orders, self._kv_pages, self._client = shared.orders, shared.kv_pages, shared.client
        self._health, self._counters, self._settings = shared.health, shared.counters, shared.settings
        self._held = shared.held
        self._name, self._regions = f"kv.{shared.name}.receive", shared.regions
        self.memory = BufferMemory(self._settings.receive_buffer_bytes)
        self._by_name: dict[int, Inbound] = {}
        self._by_request: dict[tuple[int, int], Inbound] = {}
        self._news = asyncio.Event()  # set, and replaced, when a prompt is expected
        self._reads: asyncio.Queue[Inbound] = asyncio.Queue()  # bounded by the engine's lanes
        self._fills: asyncio.Queue[tuple[np.void, Inbound]] = asyncio.Queue()  # bounded by the engine's lanes

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait to be read from the store, or are being read (read_q of D9)."""
        return sum(inbound.unread_tokens for inbound in self._by_request.values())

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

    async def open(self, name: int, block_bytes: int) -> tuple[RegionDescriptor, range]:
        """The prompt's buffer, and which blocks of its hit are in it. Raises UnknownTransfer."""
        inbound = await self._expected(name)
        if inbound.opened or block_bytes != self._kv_pages.block_bytes:
            raise UnknownTransfer(f"transfer {name:#x} is open already, or has other blocks than {block_bytes} bytes")
        inbound.opened = True
        try:
            if not (await self._granted(inbound) and await _unless_gone(inbound, inbound.hit)):
                raise UnknownTransfer(f"transfer {name:#x} has ended")
            loop = asyncio.get_running_loop()
            inbound.give_up = loop.call_later(self._settings.transfer_s, self._lose, inbound, "nothing came in time")
            return self._region(inbound).descriptor(), inbound.reads[: inbound.hit.result()]
        except BaseException as error:
            self._lose(inbound, repr(error))
            raise

    def finish(self, name: int, first_token: int) -> None:
        """All is in the buffer. Raises UnknownTransfer."""
        inbound = self._by_name.get(name)
        if inbound is None or inbound.region is None or inbound.answered:
            raise UnknownTransfer(f"nobody waits for transfer {name:#x} any more")
        self._settle(inbound)
        self._orders.answer_load(inbound.order, first_token + 1)
        self._counters.prompts_received += 1

    # --- life ---

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as workers:
                workers.create_task(self._fill_all())
                for _ in range(self._settings.load_workers):
                    workers.create_task(self._read_all())
        finally:
            while not self._fills.empty():
                self._orders.answer_load(self._fills.get_nowait()[0], 0)
            for inbound in list(self._by_request.values()):
                self._lose(inbound, "the engine stops")

    async def _fill_all(self) -> None:
        while True:
            await self._fill(*await self._fills.get())

    async def _read_all(self) -> None:
        while True:
            inbound = await self._reads.get()
            hit = await self._read_hit(inbound) if await self._granted(inbound) else 0
            inbound.hit.set_result(hit)

    async def _granted(self, inbound: Inbound) -> bool:
        """Once there is memory for it; False if it has ended before."""
        return inbound.share is not None and await _unless_gone(inbound, inbound.share.granted)

    async def _fill(self, order: np.void, inbound: Inbound) -> None:
        filled = 0
        try:
            pages = self._orders.pages_of(order)
            region, block_bytes = inbound.region, self._kv_pages.block_bytes
            while region is not None and filled < len(pages):
                block = region.view[filled * block_bytes : (filled + 1) * block_bytes]
                await self._kv_pages.write(int(pages[filled]), block)
                if filled < len(inbound.keys):  # the others come when they are offered to the store
                    self._held.put(inbound.keys[filled], inbound.keys[filled - 1] if filled else None, block)
                filled += 1
                await asyncio.sleep(0)  # the event loop is shared
        finally:
            self._counters.count(KvLink.DECODE_BUFFER_PAGES, filled * self._kv_pages.block_bytes)
            self._orders.answer_load(order, filled)
            self._free(inbound)

    async def _expected(self, name: int) -> Inbound:
        """The prefill engine may have heard of a request before this agent has."""
        try:
            async with asyncio.timeout(self._settings.peer_wait_s):
                while (inbound := self._by_name.get(name)) is None:
                    await self._news.wait()
        except TimeoutError:
            raise UnknownTransfer(f"no request waits for transfer {name:#x}") from None
        return inbound

    async def _read_hit(self, inbound: Inbound) -> int:
        """Full Blocks from the store (D2), but for those that are held. Whatever fails costs the prefill side more to
        compute, and nothing else."""
        if not (inbound.held or self._health.available):
            return 0
        block_bytes = self._kv_pages.block_bytes
        self._counters.loads += 1
        held = loaded = 0
        try:
            async with asyncio.timeout(self._settings.load_deadline_s):
                held = await self._take_held(inbound)
                if held < len(inbound.reads) and self._health.available:
                    loaded = await self._read_blocks(inbound, inbound.reads[held:])
        except (StoreUnavailable, TimeoutError, OSError) as error:
            if isinstance(error, StoreUnavailable):
                self._health.failed(error)
            log.warning("a hit was not read", extra={"slot": inbound.request[0], "why": repr(error)})
            self._close_region(inbound)  # the store may still be writing to it
            held = 0
        self._counters.loads_short += held + loaded < len(inbound.reads)
        self._counters.blocks_loaded += loaded
        self._counters.bytes_loaded += loaded * block_bytes
        self._counters.blocks_reused += held
        self._counters.count(KvLink.STORE_DECODE_BUFFER, loaded * block_bytes)
        self._counters.count(KvLink.HELD_DECODE_BUFFER, held * block_bytes)
        return held + loaded

    async def _take_held(self, inbound: Inbound) -> int:
        """Of `reads`, the first ones, as many as are held, into the buffer."""
        block_bytes, first = self._kv_pages.block_bytes, inbound.reads.start
        with self._held.pinned(inbound.keys[: inbound.reads.stop]) as run:
            for at in range(first, len(run)):
                if inbound.gone.done():
                    return 0
                self._region(inbound).view[at * block_bytes : (at + 1) * block_bytes] = run.block(at)
                await asyncio.sleep(0)  # the event loop is shared
            return max(0, len(run) - first)

    async def _read_blocks(self, inbound: Inbound, reads: range) -> int:
        block_bytes, timeout_s = self._kv_pages.block_bytes, self._settings.read_timeout_s
        batch = max(1, self._settings.load_buffer_bytes // block_bytes)
        target, loaded = self._region(inbound).descriptor(), 0
        keys = inbound.keys[: reads.stop]
        async with self._client.lease(keys, self._settings.load_deadline_s, timeout_s) as hit:
            self._health.answered()
            while (first := reads.start + loaded) < hit.hit and not inbound.gone.done():
                count = min(batch, hit.hit - first)
                got = await self._client.read(
                    hit.lease_id, first, count, block_bytes, target, first * block_bytes, timeout_s
                )
                loaded += got.blocks
                if got.blocks < count:
                    log.info("fewer blocks than expected", extra={"got": got.blocks, "why": got.reason})
                    break
        return loaded

    def _region(self, inbound: Inbound) -> MemoryRegion:
        if inbound.region is None:
            name = f"{self._name}.{secrets.token_hex(6)}"
            length = inbound.blocks * self._kv_pages.block_bytes
            inbound.region = self._regions.create(name, length, Rights.READ | Rights.WRITE)
        return inbound.region

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
        self._close_region(inbound)
        if inbound.share is not None:
            self.memory.give_back(inbound.share)

    def _close_region(self, inbound: Inbound) -> None:
        if inbound.region is not None:
            inbound.region.close()
            inbound.region = None


async def _unless_gone(inbound: Inbound, awaited: asyncio.Future[Any]) -> bool:
    """Once it is done; False if the request has ended before."""
    await asyncio.wait((awaited, inbound.gone), return_when=asyncio.FIRST_COMPLETED)
    return not inbound.gone.done()
