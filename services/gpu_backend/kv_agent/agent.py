"""The agent: takes the scheduler's orders and hands them to loader and storer."""

import asyncio
from functools import partial
from typing import Any

from services.common.keys import BLOCK_TOKENS, block_keys
from services.fabric.hosting import SHARED_MEMORY, RegionHost
from services.gpu_backend.kv_agent.chains import Chains
from services.gpu_backend.kv_agent.counters import AgentCounters
from services.gpu_backend.kv_agent.health import StoreHealth
from services.gpu_backend.kv_agent.loader import Loader
from services.gpu_backend.kv_agent.orders import InOrder, Orders
from services.gpu_backend.kv_agent.pages import Pages
from services.gpu_backend.kv_agent.prompts import Prompts
from services.gpu_backend.kv_agent.settings import AgentSettings
from services.gpu_backend.kv_agent.storer import Storer
from services.gpu_backend.scheduler.orders import KvOrderKind
from services.kvstore.client import StoreClient

GROWTH = 1.2
"""Of the pause between two looks, each time there was nothing to do."""


class KvAgent:
    """`run` it as a task beside the scheduler, on one event loop; it ends when cancelled, all loads answered.

    orders    the scheduler's OrderQueue; nobody else takes from it
    pages     the engine's
    client    of the store; stays the caller's to close
    name      of this engine, for its registered memory
    regions   makes that memory
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
    ) -> None:
        self.counters = AgentCounters()
        self._orders, self._prompts, self._settings = orders, prompts, settings
        health = StoreHealth(settings.retry_s)
        self._chains = Chains(pages.block_bytes)
        self._in_order = InOrder(orders.release)
        self._loader = Loader(orders, pages, client, health, self.counters, settings, f"kv.{name}", regions)
        self._storer = Storer(pages, client, health, self.counters, settings)

    @property
    def read_queue_tokens(self) -> int:
        """Tokens waiting to be read from the store (read_q of D9)."""
        return self._loader.queued_tokens

    @property
    def idle(self) -> bool:
        """Nothing is being loaded or stored."""
        return self._storer.idle and not self.read_queue_tokens

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._loader.run())
            tasks.create_task(self._storer.run())
            pause_s = self._settings.idle_poll_s
            while True:
                fresh = self._orders.take()
                for order in fresh:
                    self._obey(order)
                if len(fresh) or len(self._chains):
                    pause_s = self._settings.busy_poll_s
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * GROWTH, self._settings.idle_poll_s)

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
                self._in_order.done(number)

    def _load(self, order: Any, slot: int, generation: int) -> None:
        """The keys come from the prompt itself: a wrong lease can't bring in another prompt's blocks."""
        root = order["kv_root"].tobytes()
        prompt = self._prompts.tokens(slot, generation, int(order["block_count"]) * BLOCK_TOKENS)
        keys = block_keys(root, prompt)
        self._chains.begin(slot, generation, root, keys)
        self._loader.submit(order, keys)

    def _store(self, order: Any, slot: int, generation: int, number: int) -> None:
        let_go = partial(self._in_order.done, number)
        root, position = order["kv_root"].tobytes(), int(order["first_block"])
        chain, block = self._chains.follow(slot, generation, root, position, order["tokens"])
        if block is None:
            self._storer.refuse(let_go)
        else:
            self._storer.offer(chain, block, int(order["page"]), let_go)
