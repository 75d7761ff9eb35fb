"""Attachment: a lease kept, and every way of losing an engine noticed."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from services.fabric.ring import EngineState, Finish, LeaseState, SlotState
from services.fabric.ring.layout import HEADER
from services.fabric.tcp.agent import TcpPublisher
from services.gpu_backend.client import EngineBusy, EngineClient, EngineUnavailable, LeaseEnded
from services.tokenizer.attachment import Attachment, AttachmentSettings
from services.tokenizer.reader import Progress
from services.tokenizer.ring_driver import Deliver
from services.tokenizer.submission import BadRequest, RingRequest, Submitted
from tests.tokenizer.ring.conftest import Rig
from tests.tokenizer.ring.fake_engine import FakeEngine
from tests.tokenizer.ring.fake_scheduler import answer
from tests.waiting import until

MakeRig = Callable[..., Rig]
MakeRequest = Callable[..., RingRequest]
FAST = AttachmentSettings(watch_s=0.01, stall_s=60.0)


@dataclass
class Inbox:
    """Takes what an attachment delivers."""

    tokens: dict[object, list[int]] = field(default_factory=lambda: defaultdict(list))
    finishes: dict[object, Finish] = field(default_factory=dict)

    def deliver(self, progress: list[Progress]) -> None:
        for news in progress:
            tag = news.handle.request.tag
            self.tokens[tag] += news.tokens.tolist()
            if news.finish is not None:
                self.finishes[tag] = news.finish


@dataclass
class Setting:
    engine: FakeEngine
    client: EngineClient
    attachment: Attachment
    inbox: Inbox
    running: asyncio.Task[list[Submitted]]

    async def lost(self) -> tuple[str, list[object]]:
        async with asyncio.timeout(60):
            handles = await self.running
        assert self.attachment.lost is not None
        return self.attachment.lost, [handle.request.tag for handle in handles]


@pytest.fixture(params=["shm", "tcp"])
def publisher(request: pytest.FixtureRequest) -> Iterator[TcpPublisher | None]:
    """Everything here holds for a ring in shared memory and for one behind a network."""
    if request.param == "shm":
        yield None
        return
    made = TcpPublisher("127.0.0.1:0")
    yield made
    made.close()


async def submit(attachment: Attachment, requests: list[RingRequest]) -> list[Submitted]:
    """Those that were published; none if the engine is lost."""
    bursts: list[list[Submitted]] = []
    attachment.submit(requests, bursts.append)
    await until(lambda: bool(bursts) or attachment.lost is not None)
    return bursts[0] if bursts else []


@asynccontextmanager
async def attached(
    rig: Rig, ttl_ms: int = 60_000, settings: AttachmentSettings = FAST, deliver: Deliver | None = None
) -> AsyncIterator[Setting]:
    engine = FakeEngine(rig.owner, rig.scheduler, ttl_ms)
    inbox = Inbox()
    async with engine.serve() as address:
        client = EngineClient(address)
        attachment = await Attachment.open(client, "test", deliver or inbox.deliver, settings)
        running = asyncio.create_task(attachment.run())
        yield Setting(engine, client, attachment, inbox, running)
        running.cancel()
        await asyncio.wait([running])
        await attachment.close()
        await client.close()


async def test_requests_come_back_whole(rig: MakeRig, request_of: MakeRequest) -> None:
    async with attached(rig()) as s:
        waiting = [request_of(max_tokens=1 + i % 40, seed=i, tag=i) for i in range(50)]
        asked = list(waiting)
        while waiting:
            del waiting[: len(await submit(s.attachment, waiting))]
            await asyncio.sleep(0.002)
        await until(lambda: len(s.inbox.finishes) == len(asked))
        for i, request in enumerate(asked):
            assert (s.inbox.tokens[i], s.inbox.finishes[i]) == answer(request.prompt, i, request.max_tokens)
        assert s.attachment.in_flight == 0
        assert s.attachment.accepting


async def test_a_cancelled_request_ends_soon(rig: MakeRig, request_of: MakeRequest) -> None:
    async with attached(rig(words=1 << 16)) as s:
        handles = await submit(s.attachment, [request_of(max_tokens=4000, tag="long")])
        await until(lambda: len(s.inbox.tokens["long"]) > 4)
        s.attachment.cancel(handles)
        await until(lambda: "long" in s.inbox.finishes)
        assert s.inbox.finishes["long"] is Finish.CANCELLED
        assert len(s.inbox.tokens["long"]) < 4000


async def test_a_wrong_request_harms_nobody(rig: MakeRig, request_of: MakeRequest) -> None:
    async with attached(rig()) as s:
        with pytest.raises(BadRequest):
            s.attachment.check(request_of(max_tokens=0))
        assert (s.attachment.in_flight, s.attachment.lost) == (0, None)


async def test_the_lease_is_kept(rig: MakeRig) -> None:
    async with attached(rig(), ttl_ms=1500) as s:
        s.engine.refusals = 1
        await until(lambda: s.engine.renewals >= 3)
        assert s.engine.refusals == 0
        assert s.attachment.lost is None


async def test_closing_gives_the_share_back(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig()
    async with attached(r) as s:
        assert s.engine.places()[0] is LeaseState.LEASED
        s.engine.turning = False
        await submit(s.attachment, [request_of()])
        s.running.cancel()
        await s.attachment.close()
        await s.attachment.close()
        assert await submit(s.attachment, [request_of()]) == []
        assert s.attachment.lost == "closed"
        s.engine.turning = True
        await until(lambda: s.engine.places()[0] is LeaseState.FREE)
        assert r.owner.slot_states()[SlotState.EMPTY] == 64


async def test_an_ended_lease(rig: MakeRig, request_of: MakeRequest) -> None:
    async with attached(rig(), ttl_ms=1500) as s:
        s.engine.turning = False
        await submit(s.attachment, [request_of(tag="a"), request_of(tag="b")])
        s.engine.end(1)
        reason, tags = await s.lost()
        assert "NOT_FOUND: no lease 1" in reason
        assert tags == ["a", "b"]
        assert not s.attachment.accepting


async def test_drained_slots_are_noticed_before_the_next_renewal(rig: MakeRig, request_of: MakeRequest) -> None:
    async with attached(rig()) as s:
        s.engine.turning = False
        await submit(s.attachment, [request_of(tag="a")])
        s.engine.end(1)
        s.engine.turning = True
        reason, tags = await s.lost()
        assert "no longer holds the request" in reason
        assert tags == ["a"]


async def test_an_engine_that_does_not_answer(rig: MakeRig, request_of: MakeRequest) -> None:
    async with attached(rig(), ttl_ms=1500) as s:
        s.engine.refusals, s.engine.turning = 1000, False
        await submit(s.attachment, [request_of(tag="a")])
        reason, tags = await s.lost()
        assert reason == "the lease ran out before the engine renewed it"
        assert tags == ["a"]


async def test_a_scheduler_that_stands_still(rig: MakeRig, request_of: MakeRequest) -> None:
    async with attached(rig(), settings=AttachmentSettings(watch_s=0.01, stall_s=0.5)) as s:
        s.engine.turning = False
        await asyncio.sleep(0.6)  # standing still is no fault while nothing is in flight
        assert s.attachment.lost is None
        await submit(s.attachment, [request_of(tag="a")])
        reason, tags = await s.lost()
        assert reason.startswith("the scheduler has stood still for ")
        assert tags == ["a"]


async def test_a_restarted_engine(rig: MakeRig) -> None:
    r = rig()
    async with attached(r) as s:
        r.owner.buffer[: HEADER.itemsize].view(HEADER)[0]["epoch"] = 2
        reason, _ = await s.lost()
        assert reason == "the engine restarted: epoch 2, was 1"


@pytest.mark.parametrize("state", [EngineState.STOPPED, EngineState.FAILED])
async def test_an_engine_that_says_that_it_is_over(rig: MakeRig, state: EngineState) -> None:
    r = rig()
    async with attached(r) as s:
        r.owner.set_engine_state(state)
        reason, _ = await s.lost()
        assert reason == f"the engine has {state.name.lower()}"


async def test_a_draining_engine_is_not_lost_but_takes_nothing_new(rig: MakeRig) -> None:
    r = rig()
    async with attached(r) as s:
        r.owner.set_engine_state(EngineState.DRAINING)
        await until(lambda: not s.attachment.accepting)
        assert s.attachment.lost is None


async def test_a_region_that_its_owner_closed(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig()
    async with attached(r) as s:
        s.engine.turning = False
        await submit(s.attachment, [request_of(tag="a")])
        r.owner.region.close()
        assert await submit(s.attachment, [request_of(tag="b")]) == []
        reason, tags = await s.lost()
        assert "has ended; ask its owner" in reason
        assert tags == ["a"]


async def test_nothing_is_written_in_the_last_part_of_a_lease(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig()
    engine = FakeEngine(r.owner, r.scheduler, ttl_ms=1000)
    now = time.monotonic()
    async with engine.serve() as address:
        client = EngineClient(address)
        attachment = await Attachment.open(client, "test", Inbox().deliver, FAST, clock=lambda: now)
        await submit(attachment, [request_of()])
        now += 0.81
        before = r.owner.buffer.copy()
        assert await submit(attachment, [request_of()]) == []
        assert attachment.lost is not None
        assert "lease ran out" in attachment.lost
        now -= 0.81  # lost is lost
        assert await submit(attachment, [request_of()]) == []
        r.scheduler.turn(most=0)
        assert int(r.owner.buffer[128:192].view("u8").sum()) == int(before[128:192].view("u8").sum())
        await attachment.close()
        await client.close()


async def test_no_polls_while_nothing_is_in_flight(
    rig: MakeRig, request_of: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attached(rig(), settings=AttachmentSettings()) as s:
        await submit(s.attachment, [request_of(tag="a")])
        await until(lambda: "a" in s.inbox.finishes)
        polls = 0

        def count() -> None:
            nonlocal polls
            polls += 1

        monkeypatch.setattr(s.attachment._share._reader, "poll", count)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert polls == 0


async def test_a_failed_delivery_is_not_swallowed(rig: MakeRig, request_of: MakeRequest) -> None:
    def fail(progress: list[Progress]) -> None:
        raise ZeroDivisionError

    async with attached(rig(), deliver=fail) as s:
        await submit(s.attachment, [request_of()])
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(s.running, 60)
        assert caught.group_contains(ZeroDivisionError)


async def test_a_full_engine_and_none_at_all(rig: MakeRig) -> None:
    r = rig()
    engine = FakeEngine(r.owner, r.scheduler, 1000)
    async with engine.serve() as address:
        client = EngineClient(address)
        for _ in range(7):  # the rig itself holds a place
            await client.attach("x")
        with pytest.raises(EngineBusy, match=f"engine {address}: RESOURCE_EXHAUSTED: all places are taken"):
            await Attachment.open(client, "x", Inbox().deliver, FAST)
        with pytest.raises(LeaseEnded):
            await client.detach(99)
        assert await client.drain(1.0) == 3
    with pytest.raises(EngineUnavailable, match=address):
        await client.attach("x", timeout_s=1.0)
    await client.close()


async def test_a_ring_that_cannot_be_read_is_given_back(rig: MakeRig) -> None:
    r = rig()
    r.owner.buffer[:8] = 0
    engine = FakeEngine(r.owner, r.scheduler, 60_000)
    async with engine.serve() as address:
        client = EngineClient(address)
        with pytest.raises(Exception, match="holds no ring"):
            await Attachment.open(client, "x", Inbox().deliver, FAST)
        assert engine.leases == {}
        await client.close()
