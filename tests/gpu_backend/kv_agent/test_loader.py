"""Loads whose workers are busy are answered in time all the same."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from services.gpu_backend.kv_agent import AgentSettings
from services.gpu_backend.kv_agent.loader import Loader
from services.gpu_backend.kv_agent.pages import PageNumbers
from services.gpu_backend.kv_agent.sources import LoadedThere, Source
from services.gpu_backend.scheduler.orders import KvOrderKind
from services.kvstore.client import Readout, StoreClient
from tests.gpu_backend.kv_agent.conftest import PATIENT
from tests.gpu_backend.kv_agent.test_transfers import End, FakeStore
from tests.waiting import until


class SlowSteps:
    """Others, whose steps take a hit in when `go_on` is set, long after its load was answered."""

    brings = True

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def bring(
        self, order: np.void, pages: PageNumbers, sources: Sequence[Source], answer: Callable[[], None]
    ) -> None:
        answer()
        await self.go_on.wait()

    async def there(self, order: np.void) -> LoadedThere:
        raise NotImplementedError

    async def bring_blocks(self, source: LoadedThere, pages: PageNumbers) -> None:
        raise NotImplementedError


class Store(FakeStore):
    async def read(self, lease_id: int, first: int, count: int, *rest: Any, **more: Any) -> Readout:
        return await super().read(lease_id, first, count)


async def test_a_load_that_finds_no_worker_is_answered_by_its_deadline() -> None:
    end, others, store = End(), SlowSteps(), Store()
    store.go_on.set()
    patient = AgentSettings(**cast(Any, PATIENT), load_workers=1)
    loader = Loader(end.shared(cast(StoreClient, store), patient), others)

    def load(slot: int) -> None:
        order = end.order(KvOrderKind.LOAD, slot, 1, [slot, slot + 1], transfer=slot)
        loader.submit(order, [b"one", b"two"])

    running = asyncio.create_task(loader.run())
    load(1)
    await until(lambda: end.orders.answers == {(1, 1): 2})
    loader._settings = replace(patient, load_deadline_s=0.05)
    load(3)
    await until(lambda: end.orders.answers == {(1, 1): 2, (3, 1): 0})
    assert loader.queued_tokens == 0
    loader._settings = patient
    others.go_on.set()
    load(5)
    await until(lambda: (5, 1) in end.orders.answers)
    assert end.orders.answers[5, 1] == 2
    assert len(store.reading) == 2, "what nobody waits for any more is not read"
    running.cancel()
    await asyncio.wait((running,))
