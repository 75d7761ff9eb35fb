"""An engine's memory that tests fill by hand, a real store in its own process, and an agent between them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from services.common.keys import block_keys, root_key
from services.gpu_backend.kv_agent import AgentSettings, HostPages, KvAgent
from services.gpu_backend.scheduler.memory import KV_ORDER
from services.gpu_backend.scheduler.orders import KvOrderKind
from services.kvstore.client import StoreClient
from tests.kvstore.processes import shared_memory, spawn
from tests.waiting import until

__all__ = ["shared_memory", "spawn"]

BLOCK_BYTES = 20_000
PAGES = 256
PATIENT = dict.fromkeys(
    ("load_deadline_s", "layers_s", "read_timeout_s", "begin_timeout_s", "commit_timeout_s", "store_patience_s",
     "peer_wait_s"),
    60.0,
)  # fmt: skip
"""On a busy machine a store, or an event loop, is slow, not away."""
ROOT = root_key("test", "")


class FakeOrders:
    """An order ring without a scheduler. A released page is scribbled over at once, as its next owner would."""

    def __init__(self, kv_pages: NDArray[np.uint8]) -> None:
        self.ring: list[NDArray[Any]] = []
        self.taken = self.released = 0
        self.tables: dict[int, list[int]] = {}
        self.answers: dict[tuple[int, int], int] = {}
        self._kv_pages = kv_pages

    def put(self, kind: KvOrderKind, slot: int, generation: int, **fields: Any) -> None:
        order = np.zeros(1, KV_ORDER)
        order["kind"], order["slot"], order["generation"] = int(kind), slot, generation
        order["kv_root"][0] = np.frombuffer(ROOT, np.uint8)
        for name, value in fields.items():
            order[name][0] = value
        self.ring.append(order)

    def take(self) -> NDArray[Any]:
        fresh = self.ring[self.taken :]
        self.taken = len(self.ring)
        return np.concatenate([np.zeros(0, KV_ORDER), *fresh])

    def pages_of(self, order: Any) -> NDArray[np.uint32]:
        return np.array(self.tables[int(order["lane"])][: int(order["block_count"])], np.uint32)

    def answer_load(self, order: Any, blocks: int) -> None:
        request = int(order["slot"]), int(order["generation"])
        assert request not in self.answers, "answered twice"
        self.answers[request] = blocks

    def release(self, count: int) -> None:
        for order in self.ring[self.released : self.released + count]:
            if order["kind"] == KvOrderKind.STORE:
                self._kv_pages[order["page"][0]] = 0xEE
        self.released += count
        assert self.released <= self.taken


class Rig:
    """Requests are told to the agent as the scheduler would; slot n uses lane n."""

    def __init__(self, client: StoreClient, settings: AgentSettings) -> None:
        self.kv_pages = np.zeros((PAGES, BLOCK_BYTES), np.uint8)
        self.orders = FakeOrders(self.kv_pages)
        self.prompts: dict[tuple[int, int], NDArray[np.uint32]] = {}
        self.client = client
        self.agent = KvAgent(self.orders, self, HostPages(self.kv_pages), client, settings, "test")
        self._next_page = 0

    def tokens(self, slot: int, generation: int, count: int) -> NDArray[np.uint32]:
        """The agent's Prompts."""
        return self.prompts.get((slot, generation), np.empty(0, np.uint32))[:count]

    def prompt(self, blocks: int, seed: int = 0) -> NDArray[np.uint32]:
        """The same beginning for the same seed."""
        return np.random.default_rng(seed).integers(0, 50_000, blocks * 64).astype(np.uint32)

    def content(self, prompt: NDArray[np.uint32]) -> list[bytes]:
        """What the KV of each block of a prompt is, by its key."""
        return [
            np.random.default_rng(int.from_bytes(key, "little")).bytes(BLOCK_BYTES) for key in block_keys(ROOT, prompt)
        ]

    def store(self, slot: int, generation: int, prompt: NDArray[np.uint32], first: int = 0) -> None:
        """The request has computed all blocks of `prompt` from `first` on."""
        content = self.content(prompt)
        for position in range(first, len(content)):
            page = self._page()
            self.kv_pages[page] = np.frombuffer(content[position], np.uint8)
            tokens = prompt[64 * position : 64 * position + 64]
            self.orders.put(
                KvOrderKind.STORE, slot, generation, first_block=position, block_count=1, page=page, tokens=tokens
            )

    def load(self, slot: int, generation: int, prompt: NDArray[np.uint32]) -> None:
        self.prompts[slot, generation] = prompt
        blocks = len(prompt) // 64
        self.orders.tables[slot] = [self._page() for _ in range(blocks)]
        self.orders.put(KvOrderKind.LOAD, slot, generation, lane=slot, block_count=blocks, kv_reads=blocks << 32)

    def end(self, slot: int, generation: int) -> None:
        self.orders.put(KvOrderKind.END, slot, generation)

    def loaded(self, slot: int, count: int) -> list[bytes]:
        return [self.kv_pages[page].tobytes() for page in self.orders.tables[slot][:count]]

    async def answered(self, slot: int, generation: int) -> int:
        await until(lambda: (slot, generation) in self.orders.answers)
        return self.orders.answers[slot, generation]

    async def settled(self) -> None:
        """All orders are done with, nothing is under way."""
        await until(lambda: self.orders.released == len(self.orders.ring) and self.agent.idle)

    def _page(self) -> int:
        self._next_page = (self._next_page + 1) % PAGES
        return self._next_page


@pytest.fixture
def rig() -> Callable[..., contextlib.AbstractAsyncContextManager[Rig]]:
    """rig(address, **settings): an agent at work; at the end it is cancelled and every load is answered."""

    @contextlib.asynccontextmanager
    async def make(address: str, **changed: Any) -> AsyncIterator[Rig]:
        settings = AgentSettings(**{"busy_poll_s": 0.002, "idle_poll_s": 0.004, **changed})
        async with StoreClient(address) as client:
            rig = Rig(client, settings)
            task = asyncio.create_task(rig.agent.run())
            try:
                yield rig
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            loads = {(int(o["slot"][0]), int(o["generation"][0])) for o in rig.orders.ring if o["kind"] == 1}
            assert loads <= rig.orders.answers.keys(), "a load was never answered"
            assert rig.orders.released == rig.orders.taken

    return make
