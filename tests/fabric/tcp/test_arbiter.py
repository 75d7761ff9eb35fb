"""Who goes first: the arbiter against a slow one, and what it promises (D8)."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.fabric._tcp import Arbiter, ArbiterSettings, Traffic
from tests.fabric.tcp.slow_arbiter import SlowArbiter

MODEL, KV = Traffic.MODEL, Traffic.KV

sizes = st.integers(1, 100_000)
events = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([MODEL, KV]), sizes),
    st.tuples(st.just("done"), st.sampled_from([MODEL, KV]), st.just(0)),
    st.tuples(st.just("grant"), st.just(KV), st.just(0)),
)


@given(steps=st.lists(events, max_size=60), weights=st.tuples(st.integers(1, 99), st.integers(1, 9)))
def test_it_decides_as_the_slow_one(steps: list[tuple[str, Traffic, int]], weights: tuple[int, int]) -> None:
    fast, slow = Arbiter(ArbiterSettings(*weights)), SlowArbiter(*weights)
    queued: dict[Traffic, deque[int]] = {MODEL: deque(), KV: deque()}
    moving: dict[Traffic, deque[int]] = {MODEL: deque(), KV: deque()}
    for what, traffic, count in steps:
        if what == "ask":
            fast.ask(traffic, count)
            slow.ask(traffic, count)
            queued[traffic].append(count)
        elif what == "done" and moving[traffic]:
            count = moving[traffic].popleft()
            fast.done(traffic, count)
            slow.done(traffic, count)
        elif what == "grant":
            granted = fast.grant()
            assert granted == slow.grant(fast.window)
            if granted is not None:
                moving[granted].append(queued[granted].popleft())
        assert [fast.under_way(kind) for kind in Traffic] == [slow.under_way(kind) for kind in Traffic]


@pytest.mark.parametrize("weights", [(99, 1), (3, 1), (1, 1), (1, 3)])
def test_both_waiting_share_by_weight(weights: tuple[int, int]) -> None:
    arbiter, chance = Arbiter(ArbiterSettings(*weights)), random.Random(3)
    moved = {MODEL: 0, KV: 0}
    queued = {MODEL: deque[int](), KV: deque[int]()}
    for _ in range(20_000):
        for traffic in Traffic:
            while len(queued[traffic]) < 2:
                queued[traffic].append(chance.randrange(1, 3000) if traffic is MODEL else 4096)
                arbiter.ask(traffic, queued[traffic][-1])
        granted = arbiter.grant()
        assert granted is not None
        count = queued[granted].popleft()
        moved[granted] += count
        arbiter.done(granted, count)
    share = moved[KV] / (moved[KV] + moved[MODEL])
    assert share == pytest.approx(weights[1] / sum(weights), rel=0.02)


def test_a_model_transfer_waits_for_no_more_than_a_chunk_that_has_its_turn() -> None:
    arbiter = Arbiter(ArbiterSettings())
    for _ in range(1000):
        arbiter.ask(KV, 4096)
    while arbiter.grant() is KV:
        arbiter.done(KV, 4096)
        if arbiter.waiting(KV) == 500:
            break
    chunks, chance = 0, random.Random(2)
    moved = 0
    for _ in range(500):
        arbiter.ask(MODEL, size := chance.randrange(1, 200_000))
        before = 0
        while arbiter.grant() is KV:
            before += 1
            arbiter.done(KV, 4096)
        assert before <= 1
        chunks += before
        moved += size
    assert chunks == pytest.approx(moved / 99 / 4096, abs=1)


def test_kv_alone_gets_everything_and_no_more_than_the_window() -> None:
    arbiter = Arbiter(ArbiterSettings())
    granted = 0
    for _ in range(100):
        arbiter.ask(KV, arbiter.chunk)
        granted += arbiter.grant() is KV
    assert granted == arbiter.window // arbiter.chunk
    arbiter.done(KV, arbiter.chunk)
    assert arbiter.grant() is KV


def test_a_chunk_larger_than_the_window_goes_alone() -> None:
    arbiter = Arbiter(ArbiterSettings())
    arbiter.ask(KV, 1 << 30)
    assert arbiter.grant() is KV
    arbiter.ask(KV, 1)
    assert arbiter.grant() is None


def test_small_model_transfers_do_not_hold_kv_up() -> None:
    """Polls of a ring are always under way; KV keeps the rest of the window."""
    arbiter = Arbiter(ArbiterSettings())
    arbiter.ask(MODEL, 4096)
    assert arbiter.grant() is MODEL
    arbiter.ask(KV, 4096)
    assert arbiter.grant() is KV


def test_who_leaves_the_queue_is_not_granted() -> None:
    arbiter = Arbiter(ArbiterSettings())
    for count in (100_000, 1, 2):
        arbiter.ask(KV, count)
    arbiter.withdraw(KV, 0)
    assert arbiter.grant() is KV
    assert arbiter.under_way(KV) == 1
    with pytest.raises(IndexError):
        arbiter.withdraw(KV, 7)
    with pytest.raises(ValueError, match="not under way"):
        arbiter.done(KV, 5)


@pytest.mark.parametrize(("rate", "idle_s"), [(12.5e6, 0.0002), (125e6, 0.0001), (3e9, 0.00003)])
def test_the_window_fills_the_link_and_delays_as_little_as_it_may(rate: float, idle_s: float) -> None:
    """A link of `rate` bytes a second whose empty queue takes `idle_s`: simulated, chunk by chunk."""
    settings = ArbiterSettings()
    arbiter = Arbiter(settings)
    moving: deque[tuple[float, float, int]] = deque()  # arrives, asked, bytes
    now = free = 0.0
    busy_since, moved = 0.0, 0
    delays = []
    for turn in range(6000):
        if not arbiter.waiting(KV):
            arbiter.ask(KV, arbiter.chunk)
            asked = arbiter.chunk
        while arbiter.grant() is not None:
            free = max(free, now) + asked / rate
            moving.append((free + idle_s, now, asked))
            arbiter.ask(KV, arbiter.chunk)
            asked = arbiter.chunk
        now, since, count = moving.popleft()
        delay = now - since - idle_s
        arbiter.done(KV, count)
        arbiter.measured(delay, count)
        if turn == 3000:
            busy_since = now
        elif turn > 3000:
            moved += count
            delays.append(delay)
    assert moved / (now - busy_since) > 0.97 * rate
    assert max(delays) < 2 * settings.wait_s


@pytest.mark.parametrize(
    "wrong", [{"model_weight": 0}, {"kv_weight": 0}, {"wait_s": 0.0}, {"least_chunk": 100}, {"most_window": 4000}]
)
def test_settings_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
        ArbiterSettings(**wrong)  # type: ignore[arg-type]
