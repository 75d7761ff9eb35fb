"""Hand-overs between a prefill and a decode engine's agents: bytes, bounds, and whoever leaves in the middle."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import numpy as np
import pytest

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.errors import StaleRegion
from services.fabric.gate import GateKey
from services.fabric.hosting import SHARED_MEMORY
from services.fabric.transports import open_region
from services.gpu_backend.kv_agent import AgentCounters, AgentSettings, HostPages, Pages, buffer_opener
from services.gpu_backend.kv_agent.buffer_memory import BufferMemory, Share
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.handover import TransferFailed
from services.gpu_backend.kv_agent.health import StoreHealth
from services.gpu_backend.kv_agent.held import HeldBlocks
from services.gpu_backend.kv_agent.inbound import Inbound, UnknownTransfer
from services.gpu_backend.kv_agent.receiver import Receiver
from services.gpu_backend.kv_agent.sender import Sender
from services.gpu_backend.kv_agent.shared import Shared
from services.gpu_backend.scheduler.orders import KvOrderKind
from services.kvstore.client import Hit, Readout, StoreClient
from tests.gpu_backend.kv_agent.conftest import FakeOrders

LAYERS, LAYER_BYTES, PAGES = 3, 512, 16
BLOCK_BYTES = LAYERS * LAYER_BYTES
NO_STORE = cast(StoreClient, None)


class End:
    """One engine's pages and order ring."""

    def __init__(self) -> None:
        self.pages = np.zeros((PAGES, BLOCK_BYTES), np.uint8)
        self.orders, self.counters = FakeOrders(self.pages), AgentCounters()
        self.kv_pages = self.pages_of()

    def pages_of(self) -> Pages:
        return HostPages(self.pages)

    def shared(self, store: StoreClient, settings: AgentSettings) -> Shared:
        pages, health = self.kv_pages, StoreHealth(1.0)
        held = HeldBlocks(settings.held_bytes, BLOCK_BYTES)
        return Shared(self.orders, pages, store, health, self.counters, settings, "test", SHARED_MEMORY, LAYERS, held)

    def order(self, kind: KvOrderKind, slot: int, generation: int, pages: list[int], **fields: Any) -> np.void:
        self.orders.tables[slot] = pages
        self.orders.put(kind, slot, generation, lane=slot, block_count=len(pages), **fields)
        order: np.void = self.orders.ring[-1][0]
        return order


class Pair:
    """Slot 1 on the prefill side, slot 2 on the decode side. Is the prefill side's DecodeSide, too."""

    def __init__(self, store: Any = NO_STORE, **changed: Any) -> None:
        settings = AgentSettings(**{"peer_wait_s": 0.2, "receive_buffer_bytes": 8 * BLOCK_BYTES, **changed})
        self.prefill, self.decode = End(), End()
        self.receiver = Receiver(self.decode.shared(store, settings))
        self.sender = Sender(self.prefill.shared(store, settings), self)
        self.opened, self.changed = asyncio.Event(), asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    def lives(self, engine: int) -> bool:
        return True

    async def open(self, transfer: int, block_bytes: int, machine: str) -> tuple[BufferPlace, range]:
        try:
            found = await self.receiver.open(transfer, block_bytes, machine)
        except UnknownTransfer as error:
            raise TransferFailed(str(error)) from error
        self.opened.set()
        await self.go_on.wait()
        return found

    async def finish(self, transfer: int, first_token: int) -> None:
        try:
            self.receiver.finish(transfer, first_token)
        except UnknownTransfer as error:
            raise TransferFailed(str(error)) from error

    def expect(
        self, transfer: int = 7, blocks: int = 4, slot: int = 2, generation: int = 1, keys: Sequence[bytes] = ()
    ) -> None:
        order = self.decode.order(KvOrderKind.RECEIVE, slot, generation, [0] * blocks, transfer=transfer)
        self.receiver.expect(order, list(keys), range(len(keys)))

    def send(self, transfer: int = 7, blocks: int = 4, generation: int = 1) -> None:
        pages = list(range(blocks))
        self.prefill.pages[:blocks] = np.random.default_rng(1).integers(0, 256, (blocks, BLOCK_BYTES), np.uint8)
        self.sender.submit(self.prefill.order(KvOrderKind.SEND, 1, generation, pages, transfer=transfer, tokens=41))

    async def answer(self, end: End, slot: int, generation: int = 1) -> int:
        """Takes the answer away, so that the next order of this request may be answered."""
        async with asyncio.timeout(60):
            while (slot, generation) not in end.orders.answers:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return end.orders.answers.pop((slot, generation))


@contextlib.asynccontextmanager
async def pair(**changed: Any) -> AsyncIterator[Pair]:
    p = Pair(**changed)
    tasks = [asyncio.create_task(job) for job in (p.receiver.run(), p.sender.run())]
    try:
        yield p
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert p.receiver.memory.free == p.receiver.memory.size


async def test_a_prompt_gets_from_pages_to_pages_and_the_buffer_is_free_again() -> None:
    async with pair() as p:
        p.expect()
        p.send()
        assert await p.answer(p.prefill, 1) == 4
        assert await p.answer(p.decode, 2) == 41 + 1
        assert p.receiver.memory.free == 4 * BLOCK_BYTES
        assert p.receiver.fill(p.decode.order(KvOrderKind.LOAD, 2, 1, [9, 3, 5, 1]))
        assert await p.answer(p.decode, 2) == 4
        assert np.array_equal(p.decode.pages[[9, 3, 5, 1]], p.prefill.pages[:4])
        assert p.receiver.memory.free == p.receiver.memory.size


async def test_a_prompt_that_is_sent_before_it_is_expected_is_waited_for() -> None:
    async with pair(peer_wait_s=10.0) as p:
        p.send()
        await asyncio.sleep(0)
        p.expect()
        assert await p.answer(p.prefill, 1) == 4


async def test_a_first_token_that_is_none_is_refused() -> None:
    async with pair() as p:
        p.expect()
        await p.receiver.open(7, BLOCK_BYTES, "")
        with pytest.raises(UnknownTransfer, match="which is none"):
            p.receiver.finish(7, 2**32 - 1)
        assert not p.decode.orders.answers
        p.receiver.finish(7, 0)
        assert await p.answer(p.decode, 2) == 1


async def test_nobody_waits_for_it() -> None:
    async with pair() as p:
        p.send()
        assert await p.answer(p.prefill, 1) == 0
        with pytest.raises(UnknownTransfer):
            p.receiver.finish(7, 1)


async def test_the_decode_side_leaves_while_the_prefill_side_is_about_to_write() -> None:
    async with pair() as p:
        p.expect()
        p.go_on.clear()
        p.send()
        await p.opened.wait()
        p.receiver.forget(2, 1)
        assert p.receiver.memory.free == p.receiver.memory.size
        p.expect(transfer=8, generation=2)  # the slot is used again
        place, _ = await p.receiver.open(8, BLOCK_BYTES, "")
        p.go_on.set()
        assert await p.answer(p.prefill, 1) == 0
        assert not p.decode.orders.answers, "an answer after the request's end"
        with contextlib.closing(open_region(place.region)) as region:
            assert not any(region.read(0, place.region.length))


async def test_a_late_writer_finds_its_right_ended_and_one_under_way_is_waited_for() -> None:
    async with pair() as p:
        p.expect()
        place, hit = await p.receiver.open(7, BLOCK_BYTES, "")
        assert not hit
        assert place.gate is not None
        key = GateKey(place.gate)
        with key.hold():
            p.receiver.forget(2, 1)
            with pytest.raises(StaleRegion), key.hold():
                pass
            await asyncio.sleep(0.05)  # looks behind the gate meanwhile
            assert p.receiver.memory.free == 4 * BLOCK_BYTES
        async with asyncio.timeout(60):
            while p.receiver.memory.free < p.receiver.memory.size:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        key.close()


async def test_whoever_leaves_while_a_buffer_is_opened_leaves_no_key_open(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, keys = threading.Event(), threading.Event(), list[GateKey]()

    class SlowKey(GateKey):
        def __init__(self, descriptor: RegionDescriptor) -> None:
            begun.set()
            assert go_on.wait(60)
            super().__init__(descriptor)
            keys.append(self)

    monkeypatch.setattr(buffer_opener, "GateKey", SlowKey)
    async with pair() as p:
        p.expect()
        p.send()
        assert await asyncio.to_thread(begun.wait, 60)
        p.sender.forget(1, 1)
        await asyncio.sleep(0)
        go_on.set()
        assert await p.answer(p.prefill, 1) == 0
        with pytest.raises(StaleRegion, match="closed"), keys[0].hold():
            pass
        p.receiver.forget(2, 1)


async def test_who_finds_no_room_waits_and_may_leave() -> None:
    async with pair() as p:
        p.expect(1, 6, slot=2)
        p.expect(2, 6, slot=3)
        p.expect(3, 2, slot=4)
        await p.receiver.open(1, BLOCK_BYTES, "")
        second = asyncio.create_task(p.receiver.open(2, BLOCK_BYTES, ""))
        third = asyncio.create_task(p.receiver.open(3, BLOCK_BYTES, ""))  # would fit; first come, first served
        while p.receiver.memory.waiting < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        p.receiver.forget(3, 1)
        with pytest.raises(UnknownTransfer):
            await second
        assert (await third)[1] == range(0)
        assert not p.decode.orders.answers


class FakeStore:
    """A StoreClient whose reads end when `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.reading: list[int] = []

    @contextlib.asynccontextmanager
    async def lease(self, keys: list[bytes], ttl_s: float, timeout_s: float) -> AsyncIterator[Hit]:
        yield Hit(len(keys), len(keys), ttl_s, 0)

    async def read(self, lease_id: int, first: int, count: int, *rest: Any) -> Readout:
        self.reading.append(lease_id)
        await self.go_on.wait()
        return Readout(count)


async def test_hits_are_read_before_anybody_opens_a_few_at_a_time_and_count_as_queued_until_then() -> None:
    store = FakeStore()
    async with pair(load_workers=2, store=store) as p:
        for transfer, blocks in ((1, 1), (2, 2), (3, 3)):
            p.expect(transfer, blocks, slot=transfer + 1, keys=[b"k"] * blocks)
        opening = asyncio.create_task(p.receiver.open(3, BLOCK_BYTES, ""))
        while len(store.reading) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert sorted(store.reading) == [1, 2]
        assert p.receiver.queued_tokens == (1 + 2 + 3) * 64
        p.receiver.forget(3, 1)
        assert p.receiver.queued_tokens == (1 + 3) * 64
        store.go_on.set()
        assert (await opening)[1] == range(3)
        assert (await p.receiver.open(1, BLOCK_BYTES, ""))[1] == range(1)
        assert p.receiver.queued_tokens == 0


async def test_what_is_queued_may_be_asked_while_prompts_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics are read on a thread of their own."""
    async with pair() as p:
        for slot in (2, 3, 4):
            p.expect(slot, 1, slot=slot)

        def unread(inbound: Inbound) -> int:
            p.receiver.forget(*inbound.request)
            return 64

        monkeypatch.setattr(Inbound, "unread_tokens", property(unread))
        assert p.receiver.queued_tokens == 3 * 64


async def test_larger_than_all_memory_is_refused_at_once() -> None:
    async with pair() as p:
        p.expect(blocks=9)
        p.send(blocks=9)
        assert await p.answer(p.prefill, 1) == 0
        assert await p.answer(p.decode, 2) == 0


async def test_a_prefill_side_that_never_finishes_is_given_up() -> None:
    async with pair(transfer_s=0.05) as p:
        p.expect()
        await p.receiver.open(7, BLOCK_BYTES, "")
        assert await p.answer(p.decode, 2) == 0
        with pytest.raises(UnknownTransfer):
            p.receiver.finish(7, 1)
        assert p.receiver.memory.free == p.receiver.memory.size


async def test_buffer_memory_adds_up_whatever_is_asked_and_given_back() -> None:
    random = np.random.default_rng(3)
    memory = BufferMemory(100)
    shares: list[Share] = []
    for _ in range(2000):
        if random.integers(2) or not shares:
            shares.append(memory.ask(int(random.integers(1, 101))))
        else:
            share = shares.pop(int(random.integers(len(shares))))
            memory.give_back(share)
            memory.give_back(share)
        held = [share for share in shares if share.granted.done()]
        taken = np.zeros(100, int)
        for share in held:
            taken[share.first : share.first + share.size] += 1
        assert taken.max(initial=0) <= 1, "shares overlap"
        assert taken.sum() == sum(share.size for share in held) == memory.size - memory.free
        waiting = [share for share in shares if not share.granted.done()]
        assert len(waiting) == memory.waiting
        gap = max((len(run) for run in "".join(map(str, taken)).split("1")), default=0)
        assert not waiting or waiting[0].size > gap, "somebody waits who would fit"
