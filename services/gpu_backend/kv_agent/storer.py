"""Stores: full pages into the store's buffer, then durable, as far as nobody has to wait for it (D4).

On its way a block may be held in this process's memory, too, also one that the store has."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.gpu_backend.kv_agent.chains import Chain
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.shared import Shared
from services.kvstore.client import Block, StoreUnavailable, WriteBatch

log = logging.getLogger(__name__)

FULL_LOOK_S = 0.05
"""When the store's buffer was full: the next try, unless one of our own commits makes room earlier."""

HAD = ("exists", "writing")
"""The store has the block or is being given it: nothing to do, and the chain goes on."""


@dataclass(slots=True, eq=False)
class Offer:
    """A full page. `let_go` frees the page for the scheduler; it is called once the bytes are copied, or never
    will be."""

    chain: Chain
    block: Block
    page: int
    let_go: Callable[[], None]
    give_up_at: float


class Storer:
    """`run` it as a task. A page is held for `store_patience_s` at most; a block that can't be stored breaks
    its chain, because its children could never be found."""

    def __init__(self, shared: Shared) -> None:
        self._kv_pages, self._client = shared.kv_pages, shared.client
        self._health, self._counters, self._settings = shared.health, shared.counters, shared.settings
        self._held = shared.held
        self._offers: deque[Offer] = deque()
        self._work = asyncio.Event()
        self._batches = 0
        self._committing = asyncio.Lock()  # fair: batches are committed in the order in which they were begun

    @property
    def idle(self) -> bool:
        return not self._offers and not self._batches

    def offer(self, chain: Chain, block: Block, page: int, let_go: Callable[[], None]) -> None:
        """Takes a page to store; drops it at once while the store is away."""
        offer = Offer(chain, block, page, let_go, time.monotonic() + self._settings.store_patience_s)
        if self._health.available:
            self._offers.append(offer)
            self._work.set()
        else:
            self._drop(offer)

    def refuse(self, let_go: Callable[[], None]) -> None:
        """A page whose block can't be stored."""
        let_go()
        self._counters.blocks_dropped += 1

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as batches:
                while True:
                    await self._until_work()
                    self._drop_late()
                    if self._offers and self._batches < self._settings.batches:
                        copied = asyncio.Event()
                        batches.create_task(self._store(self._next_batch(), copied))
                        await copied.wait()
        finally:
            self._drop_all()

    async def _until_work(self) -> None:
        """Returns when an offer may be handled; at the latest when one is to be given up."""
        if not self._offers:
            self._work.clear()
            await self._work.wait()
        elif self._batches >= self._settings.batches or not self._work.is_set():
            self._work.clear()
            try:
                async with asyncio.timeout(FULL_LOOK_S):
                    await self._work.wait()
            except TimeoutError:
                return

    def _next_batch(self) -> list[Offer]:
        return [self._offers.popleft() for _ in range(min(self._settings.batch_blocks, len(self._offers)))]

    async def _store(self, offers: list[Offer], copied: asyncio.Event) -> None:
        self._batches += 1
        held, sent = deque(offers), list[Offer]()  # pages not let go yet; pages copied out
        try:
            async with self._client.write([o.block for o in offers], self._settings.begin_timeout_s) as batch:
                self._health.answered()
                await self._copy(batch, held, sent)
                self._offers.extendleft(reversed(held))
                held.clear()
                copied.set()
                async with self._committing:
                    reasons = await batch.commit(self._settings.commit_timeout_s)
                self._settle(sent, reasons[: len(sent)])
        except StoreUnavailable as error:
            self._health.failed(error)
            for offer in sent:
                self._lose(offer)
            self._drop_all()
        except OSError as error:
            log.warning("pages could not be read, and are not stored", extra={"why": repr(error)})
            for offer in sent:
                self._lose(offer)
        finally:
            for offer in held:
                self._drop(offer)
            copied.set()
            self._batches -= 1
            self._work.set()

    async def _copy(self, batch: WriteBatch, held: deque[Offer], sent: list[Offer]) -> None:
        """Moves offers from `held` to `sent` until the store's buffer is full."""
        for at in range(len(held)):
            offer, reason = held[0], batch.reason(at)
            if reason.startswith("full"):
                self._work.clear()
                return
            if not offer.chain.broken:
                await self._copy_one(batch, at, offer, wanted=not reason)
            sent.append(held.popleft())
            offer.let_go()
            await asyncio.sleep(0)  # the event loop is shared

    async def _copy_one(self, batch: WriteBatch, at: int, offer: Offer, wanted: bool) -> None:
        one = offer.block
        parent = one.parent if one.position else None
        held = self._held.lacks(one.key, parent)
        if not (wanted or held):
            return
        page = await self._kv_pages.read(offer.page)
        if held:
            self._held.put(one.key, parent, page)
        if wanted:
            await batch.put(at, page)

    def _settle(self, offers: Sequence[Offer], reasons: Sequence[str]) -> None:
        for offer, reason in zip(offers, reasons, strict=True):
            if not reason:
                self._counters.blocks_stored += 1
                self._counters.bytes_stored += offer.block.length
                self._counters.count(KvLink.PAGES_STORE, offer.block.length)
            elif reason in HAD:
                self._counters.blocks_existing += 1
            else:
                log.info("a block was not stored", extra={"position": offer.block.position, "why": reason})
                self._lose(offer)

    def _drop_late(self) -> None:
        now = time.monotonic()
        while self._offers and (self._offers[0].give_up_at <= now or self._offers[0].chain.broken):
            self._drop(self._offers.popleft())

    def _drop_all(self) -> None:
        while self._offers:
            self._drop(self._offers.popleft())

    def _drop(self, offer: Offer) -> None:
        offer.let_go()
        self._lose(offer)

    def _lose(self, offer: Offer) -> None:
        offer.chain.broken = True
        self._counters.blocks_dropped += 1
