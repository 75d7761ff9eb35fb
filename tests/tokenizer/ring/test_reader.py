"""Token reader: every token once, in order, with its own request, whatever the interleaving."""

import os
import random
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric.region import MemoryRegion
from services.fabric.ring import Finish, RingClient, RingGeometry, SlotState
from services.fabric.transports import open_region
from services.tokenizer.attachment import share_of
from services.tokenizer.reader import TokenReader
from services.tokenizer.slots import SlotTracker
from services.tokenizer.submission import RingRequest, ShareLost, Submitter
from tests.tokenizer.ring.conftest import Progress, Rig
from tests.tokenizer.ring.fake_scheduler import answer, lease_of, make_ring

MakeRig = Callable[..., Rig]
MakeRequest = Callable[..., RingRequest]


def test_a_request_from_submit_to_a_free_slot(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig()
    request = request_of(max_tokens=4, tag="mine")
    (handle,) = r.submitter.submit([request], 0)
    r.reader.add([handle])
    assert r.reader.poll() == ([], False)
    r.scheduler.turn(most=3)
    (news,) = r.reader.poll().progress
    tokens, finish = answer(request.prompt, 1, 4)
    assert (news.tokens.tolist(), news.finish, news.report) == (tokens[:3], None, None)
    assert r.reader.poll().progress == []
    r.scheduler.turn()
    (news,) = r.reader.poll().progress
    assert (news.tokens.tolist(), news.finish, news.handle.request.tag) == (tokens[3:], finish, "mine")
    assert news.report is not None
    assert (news.report.prefill_chunks, news.report.finished_ns) == (1, 40)
    assert r.reader.in_flight == 0
    assert r.reader.handles() == []
    assert r.submitter.in_use == (0, 0)
    assert r.owner.slot_states()[SlotState.EMPTY] == 64


def test_a_late_reader_gets_everything_at_once(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig(words=1 << 16)
    request = request_of(max_tokens=1000)
    r.reader.add(r.submitter.submit([request], 0))
    while r.scheduler.turn(most=7):
        pass
    (news,) = r.reader.poll().progress
    assert (news.tokens.tolist(), news.finish) == answer(request.prompt, 1, 1000)


def test_an_answer_without_tokens_still_ends(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig()
    (handle,) = r.submitter.submit([request_of()], 0)
    r.reader.add([handle])
    r.scheduler._set(handle.slot, SlotState.DECODE_COMPLETED, Finish.TOO_LARGE, 0)
    (news,) = r.reader.poll().progress
    assert (len(news.tokens), news.finish) == (0, Finish.TOO_LARGE)


def test_a_cap_limits_a_poll_serves_new_streams_first_and_starves_none(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig(tokens_per_poll=4)
    old = r.submitter.submit([request_of(max_tokens=100, tag=f"old{i}") for i in range(4)], 0)
    r.reader.add(old)
    r.scheduler.turn(most=1)
    assert len(r.reader.poll().progress) == 4
    r.scheduler.turn(most=3)
    r.reader.add(r.submitter.submit([request_of(max_tokens=100, tag="new")], 0))
    r.scheduler.turn(most=2)
    served = []
    more = True
    while more:
        progress, more = r.reader.poll()
        assert sum(len(news.tokens) for news in progress) <= 4
        served.append([(news.handle.request.tag, len(news.tokens)) for news in progress])
    assert served[0] == [("new", 2), ("old0", 2)]
    assert [pair for poll in served[1:] for pair in poll] == [
        ("old0", 3), ("old1", 1), ("old1", 4), ("old2", 4), ("old2", 1), ("old3", 3), ("old3", 2),
    ]  # fmt: skip


def test_a_finish_that_nobody_knows(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig()
    (handle,) = r.submitter.submit([request_of()], 0)
    r.reader.add([handle])
    word = _ring.slot_word(SlotState.DECODE_COMPLETED, Finish.NONE, handle.generation, 0) | 15 << 4
    _ring.store_release_u64(r.owner.buffer, r.owner.geometry.fields()["words_offset"] + 8 * handle.slot, word)
    with pytest.raises(ShareLost, match="no longer holds the request"):
        r.reader.poll()


def test_notices_that_its_slots_were_drained(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig()
    r.reader.add(r.submitter.submit([request_of()], 0))
    r.owner.end(1)
    r.scheduler.turn()
    with pytest.raises(ShareLost, match="no longer holds the request"):
        r.reader.poll()
    assert len(r.reader.handles()) == 1


@pytest.mark.parametrize("tokens", [0, 9])
def test_notices_a_count_that_cannot_be(rig: MakeRig, request_of: MakeRequest, tokens: int) -> None:
    r = rig()
    (handle,) = r.submitter.submit([request_of(max_tokens=8, seed=2)], 0)
    r.reader.add([handle])
    r.scheduler.turn(most=2)
    r.reader.poll()
    r.scheduler._put(handle.slot, _ring.slot_word(SlotState.DECODE_PAUSED, Finish.NONE, handle.generation, tokens))
    with pytest.raises(ShareLost):
        r.reader.poll()


def test_a_slot_is_followed_once(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig()
    handles = r.submitter.submit([request_of()], 0)
    r.reader.add(handles)
    with pytest.raises(ValueError, match="followed already"):
        r.reader.add(handles)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), slots=st.sampled_from([8, 16, 64]), cap=st.integers(1, 40))
def test_any_interleaving_gives_each_request_its_own_tokens(seed: int, slots: int, cap: int) -> None:
    rng = random.Random(seed)
    geometry = RingGeometry(slots, 1 << 12, 1 << 12)
    with MemoryRegion.create(f"property-{os.getpid()}", geometry.size_bytes) as region:
        owner, scheduler = make_ring(region, geometry)
        lease = lease_of(owner, 3)
        ring = RingClient(open_region(lease.ring), share_of(lease))
        tracker = SlotTracker(lease.slot_begin, ring.read_words())
        submitter = Submitter(ring, tracker)
        reader = TokenReader(ring, submitter.release, cap)
        waiting = [RingRequest(rng_prompt(rng), rng.randint(1, 60), seed=rng.randrange(1000), tag=i) for i in range(30)]
        asked = list(waiting)
        got: dict[int, list[int]] = defaultdict(list)
        ends: dict[int, Finish] = {}
        cancelled: set[int] = set()

        def take(progress: list[Progress]) -> None:
            for news in progress:
                tag = news.handle.request.tag
                assert isinstance(tag, int)
                assert tag not in ends
                got[tag] += news.tokens.tolist()
                if news.finish is not None:
                    ends[tag] = news.finish

        while waiting or reader.in_flight:
            match rng.randrange(4):
                case 0:
                    handles = submitter.submit(waiting[: rng.randint(1, 8)], 0)
                    del waiting[: len(handles)]
                    reader.add(handles)
                case 1:
                    scheduler.turn(rng)
                case 2:
                    take(reader.poll().progress)
                case 3 if reader.in_flight and rng.random() < 0.2:
                    victim = rng.choice(reader.handles())
                    submitter.cancel([victim])
                    cancelled.add(victim.request.tag)  # type: ignore[arg-type]
            tracker.check()
        for tag, request in enumerate(asked):
            tokens, finish = answer(request.prompt, request.seed, request.max_tokens)
            if ends[tag] is Finish.CANCELLED:
                assert tag in cancelled
                assert got[tag] == tokens[: len(got[tag])]
            else:
                assert (got[tag], ends[tag]) == (tokens, finish)
        assert submitter.in_use == (0, 0)
        assert tracker.available == lease.slot_count
        assert owner.slot_states()[SlotState.EMPTY] == slots


def rng_prompt(rng: random.Random) -> NDArray[np.uint32]:
    return np.array([rng.randrange(50_000) for _ in range(rng.randint(1, 50))], np.uint32)
