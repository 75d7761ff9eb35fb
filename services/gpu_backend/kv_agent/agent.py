"""The agent: takes the scheduler's orders and hands them to loader, storer, sender and receiver."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from services.common.keys import BLOCK_TOKENS, block_keys
from services.fabric.hosting import SHARED_MEMORY, RegionHost
from services.fabric.ring.layout import blocks_read
from services.gpu_backend.kv_agent.chains import Chains
from services.gpu_backend.kv_agent.counters import AgentCounters
from services.gpu_backend.kv_agent.health import StoreHealth
from services.gpu_backend.kv_agent.held import HeldBlocks
from services.gpu_backend.kv_agent.layer_sender import LayerSender
from services.gpu_backend.kv_agent.loader import Loader
from services.gpu_backend.kv_agent.orders import InOrder, Orders
from services.gpu_backend.kv_agent.pages import LayerPages, Pages
from services.gpu_backend.kv_agent.peers import Peers
from services.gpu_backend.kv_agent.prompts import Prompts
from services.gpu_backend.kv_agent.receiver import Receiver
from services.gpu_backend.kv_agent.sender import Sender
from services.gpu_backend.kv_agent.settings import AgentSettings
from services.gpu_backend.kv_agent.shared import Shared
from services.gpu_backend.kv_agent.storer import Storer
from services.gpu_backend.layers import LayerCounters, Pass
from services.gpu_backend.scheduler.orders import KvOrderKind
from services.kvstore.client import StoreClient

GROWTH = 1.2
"""Of the pause between two looks, each time there was nothing to do."""
DUE_S, DUE_POLL_S = 0.05, 0.001
"""For so long, so often an order is looked for that follows at once from what has just happened: a client waits."""


class KvAgent:
    """`run` it as a task beside the scheduler, on one event loop; it ends when cancelled, all loads answered.

    orders    the scheduler's OrderQueue; nobody else takes from it
    pages     the engine's
    client    of the store; stays the caller's to close
    name      of this engine, for its registered memory
    regions   makes that memory
    layers    of the model: a block's parts that cross between engines (D5)
    peers     decode engines, for an engine that prefills for them
    layer_counters  where the engine waits for them (D6) and pages can be moved by layers
    """

    def __init__(
        self,
        orders: Orders,
        prompts: Prompts,
        pages: Pages,
        client: StoreClient,
        settings: AgentSettings,
        name: str,
        regions: RegionHost = SHARED_MEMORY,
        layers: int = 1,
        peers: Peers | None = None,
        layer_counters: LayerCounters | None = None,
    ) -> None:
        self.counters = AgentCounters()
        self._orders, self._prompts, self._settings = orders, prompts, settings
        self._idle_poll_s = settings.idle_poll_s
        health = StoreHealth(settings.retry_s)
        self.held = HeldBlocks(settings.held_bytes, pages.block_bytes)
        shared = Shared(orders, pages, client, health, self.counters, settings, name, regions, layers, self.held)
        self._chains = Chains(pages.block_bytes)
        self._in_order = InOrder(orders.release)
        self._peers, self._layer_counters = peers, layer_counters
        by_layers = None
        if layer_counters and isinstance(pages, LayerPages):
            by_layers = LayerSender(pages, layer_counters, self.counters, settings)
        self._sender = Sender(shared, peers, by_layers) if peers else None
        self._loader = Loader(shared, self._sender)
        self._whole_pages = not (layer_counters and layer_counters.windowed)
        self._storer, self.receiver = Storer(shared), Receiver(shared, self._order_is_due)
        self._wanted = asyncio.Event()  # an order is awaited
        self._due_until = 0.0

    @property
    def read_queue_tokens(self) -> int:
        """Tokens waiting to be read from the store (read_q of D9)."""
        return self._loader.queued_tokens + self.receiver.queued_tokens

    @property
    def left_bytes(self) -> int:
        """Memory of decode engines that have ended, which can't be let go of before this engine's end."""
        return self._sender.left_bytes if self._sender else 0

    @property
    def idle(self) -> bool:
        """Nothing is being loaded or stored."""
        return self._storer.idle and not self.read_queue_tokens

    def hurry(self, idle_poll_s: float | None) -> None:
        """Another pause between two looks for orders when there was nothing for long; None: that of the settings."""
        self._idle_poll_s = idle_poll_s or self._settings.idle_poll_s

    async def run(self) -> None:
        with self._listening():
            await self._run()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._loader.run())
            tasks.create_task(self._storer.run())
            tasks.create_task(self.receiver.run())
            if self._sender and self._peers:
                tasks.create_task(self._sender.run())
                tasks.create_task(self._peers.run())
            pause_s = self._idle_poll_s
            while True:
                fresh = self._orders.take()
                for order in fresh:
                    self._obey(order)
                if len(fresh) or len(self._chains):
                    pause_s = self._settings.busy_poll_s
                due = time.monotonic() < self._due_until
                with suppress(TimeoutError):
                    async with asyncio.timeout(DUE_POLL_S if due else pause_s):
                        await self._wanted.wait()
                self._wanted.clear()
                pause_s = min(pause_s * GROWTH, self._idle_poll_s)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """To what the engine tells of its steps, on its thread."""
        if self._layer_counters is None or self._sender is None:
            yield
            return
        loop = asyncio.get_running_loop()

        def hear(passes: Sequence[Pass]) -> None:
            loop.call_soon_threadsafe(self._heard, passes)

        self._layer_counters.listen(hear)
        try:
            yield
        finally:
            self._layer_counters.listen(None)

    def _heard(self, passes: Sequence[Pass]) -> None:
        if self._sender and self._sender.heard(passes):
            self._wanted.set()
        if any(one.over and one.last for one in passes):
            self._order_is_due()

    def _order_is_due(self) -> None:
        self._due_until = time.monotonic() + DUE_S
        self._wanted.set()

    def _obey(self, order: Any) -> None:
        number = self._in_order.enter()
        slot, generation = int(order["slot"]), int(order["generation"])
        match KvOrderKind(int(order["kind"])):
            case KvOrderKind.LOAD:
                self._load(order, slot, generation)
                self._in_order.done(number)
            case KvOrderKind.STORE:
                self._store(order, slot, generation, number)
            case KvOrderKind.END:
                self._chains.end(slot, generation)
                self._loader.forget(slot, generation)
                self._end_transfer(slot, generation)
                self._in_order.done(number)
            case KvOrderKind.RECEIVE:
                self._receive(order, slot, generation)
                self._in_order.done(number)
            case KvOrderKind.SEND:
                self._send(order)
                self._in_order.done(number)
            case KvOrderKind.PREFILL:
                if self._sender:
                    self._sender.expect(order)
                self._in_order.done(number)

    def _load(self, order: Any, slot: int, generation: int) -> None:
        if self.receiver.fill(order):
            return
        keys = self._keys(order, slot, generation, int(order["block_count"]))
        if here := blocks_read(int(order["kv_reads"])):
            self._loader.submit(order, keys[: here.stop])
        else:  # the decode side reads (D2)
            self._send(order)

    def _receive(self, order: Any, slot: int, generation: int) -> None:
        keys = self._keys(order, slot, generation, int(order["first_block"]))
        self.receiver.expect(order, keys, blocks_read(int(order["kv_reads"])))

    def _send(self, order: Any) -> None:
        if self._sender:
            self._sender.submit(order)
        else:
            self._orders.answer_load(order, 0)

    def _end_transfer(self, slot: int, generation: int) -> None:
        self.receiver.forget(slot, generation)
        if self._sender:
            self._sender.forget(slot, generation)

    def _keys(self, order: Any, slot: int, generation: int, blocks: int) -> list[bytes]:
        """Of the blocks that the store has. They come from the prompt itself: a wrong lease can't bring in another
        prompt's blocks."""
        root = order["kv_root"].tobytes()
        keys = block_keys(root, self._prompts.tokens(slot, generation, blocks * BLOCK_TOKENS))
        self._chains.begin(slot, generation, root, keys)
        return keys

    def _store(self, order: Any, slot: int, generation: int, number: int) -> None:
        let_go = partial(self._in_order.done, number)
        root, position = order["kv_root"].tobytes(), int(order["first_block"])
        chain, block = self._chains.follow(slot, generation, root, position, order["tokens"])
        if block is None or not self._whole_pages:
            self._storer.refuse(let_go)
        else:
            self._storer.offer(chain, block, int(order["page"]), let_go)
