"""Submission: what stands in the ring after a burst, and what is refused before anything is written."""

from collections.abc import Callable

import numpy as np
import pytest

from services.fabric import _ring
from services.fabric.operations import Operation, TrafficClass, Write
from services.fabric.ring import LeaseState, RecordFlags, RingClient, SlotState
from services.fabric.ring.layout import kv_reads
from services.fabric.shm import SharedMemoryRegion
from services.tokenizer.arena import TooLarge
from services.tokenizer.slots import SlotTracker
from services.tokenizer.submission import BadRequest, RingRequest, ShareLost, Submitter
from tests.tokenizer.ring.conftest import Rig

MakeRig = Callable[..., Rig]
MakeRequest = Callable[..., RingRequest]


def test_a_burst_stands_in_the_ring_as_asked(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig()
    asked = request_of(
        200,
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=2**64 - 1,
        stop_ids=(2, 5),
        flags=RecordFlags.IGNORE_EOS,
        cached_tokens=128,
        kv_reads=range(2, 5),
        kv_root=bytes(range(16)),
    )
    first, second = r.submitter.submit([request_of(3), asked], now_ns=123)
    assert r.owner.slot_states()[SlotState.PREFILL_PENDING] == 2
    record = r.scheduler._records[second.slot]
    assert record["generation"] == second.generation
    assert [int(r.scheduler._records[h.slot]["sequence"]) for h in (first, second)] == [1, 2]
    assert (record["temperature"], record["top_k"], record["seed"]) == (0.5, 40, 2**64 - 1)
    assert record["top_p"] == np.float32(0.9)
    assert record["stop_ids"].tolist() == [2, 5, 0, 0, 0, 0, 0, 0]
    assert (record["stop_count"], record["flags"], record["cached_tokens"]) == (2, 1, 128)
    assert (record["kv_reads"], record["kv_root"].tobytes(), record["submitted_ns"]) == (
        kv_reads(2, 5),
        bytes(range(16)),
        123,
    )
    prompt = r.scheduler._prompts[record["prompt_begin"] :][: record["prompt_count"]]
    assert np.array_equal(prompt, asked.prompt)
    assert r.scheduler._header["doorbells"].tolist() == [0, 2, 0, 0, 0, 0, 0, 0]


def test_one_doorbell_a_burst_after_everything_else(
    rig: MakeRig, request_of: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = rig()
    written: list[str] = []
    for name in ("scatter", "cas_many"):
        original = getattr(SharedMemoryRegion, name)

        def spy(self: SharedMemoryRegion, *args: object, _name: str = name, _do: object = original) -> object:
            written.append(_name)
            return _do(self, *args)  # type: ignore[operator]

        monkeypatch.setattr(SharedMemoryRegion, name, spy)
    post = SharedMemoryRegion.post

    def spy_post(
        self: SharedMemoryRegion, operations: list[Operation], traffic: TrafficClass = TrafficClass.MODEL
    ) -> list[int | None]:
        written.extend("doorbell" for operation in operations if isinstance(operation, Write))
        return post(self, operations, traffic)

    monkeypatch.setattr(SharedMemoryRegion, "post", spy_post)
    assert len(r.submitter.submit([request_of() for _ in range(5)], 0)) == 5
    assert written == ["scatter", "scatter", "scatter", "cas_many", "doorbell"]  # prompts, cancels, records, words


def test_takes_what_fits_in_order_and_leaves_the_rest(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig(slots=32)  # four of the front end's
    requests = [request_of(tag=i) for i in range(6)]
    handles = r.submitter.submit(requests, 0)
    assert [handle.request.tag for handle in handles] == [0, 1, 2, 3]
    assert r.submitter.submit(requests[4:], 0) == []


def test_a_large_request_waits_its_turn_and_is_not_overtaken(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig(words=1 << 13)  # 1,024 words of each arena
    big, small = request_of(600, tag="big"), request_of(3, tag="small")
    assert [h.request.tag for h in r.submitter.submit([big, big, small], 0)] == ["big"]
    assert r.submitter.in_use == (1, 1)


def test_bursts_longer_than_the_staging_buffer_go_in_parts(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig(words=1 << 19)
    requests = [request_of(4000, seed=i) for i in range(8)]  # 32,000 words; staging holds 16,384
    for handle, request in zip(r.submitter.submit(requests, 0), requests, strict=True):
        assert np.array_equal(r.scheduler._prompts[handle.prompt.begin :][:4000], request.prompt)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tokens": 0}, "non-empty"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"prompt_tokens": 4000, "max_tokens": 97}, "exceed the context of 4096"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_p": 1.5}, "top_p 1.5"),
        ({"stop_ids": tuple(range(9))}, "9 stop ids, at most 8"),
        ({"cached_tokens": 63}, "whole pages"),
        ({"prompt_tokens": 64, "cached_tokens": 64}, "short of the prompt's end"),
        ({"kv_root": b"x"}, "kv_root has 1 bytes"),
    ],
)
def test_refuses_before_anything_is_written(
    rig: MakeRig, request_of: MakeRequest, change: dict[str, object], message: str
) -> None:
    r = rig(words=1 << 16)
    with pytest.raises(BadRequest, match=message):
        r.submitter.submit([request_of(), request_of(**change)], 0)
    assert r.owner.slot_states()[SlotState.EMPTY] == 64
    assert r.submitter.in_use == (0, 0)


def test_refuses_tokens_outside_the_vocabulary_and_other_types(rig: MakeRig) -> None:
    r = rig()
    with pytest.raises(BadRequest, match="token id 50000 is outside the vocabulary"):
        r.submitter.check(RingRequest(np.array([50_000], np.uint32), 1))
    with pytest.raises(BadRequest, match="uint32"):
        r.submitter.check(RingRequest(np.array([1], np.int64), 1))


def test_too_large_for_the_share_is_told_from_full(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig(words=1 << 13)
    with pytest.raises(TooLarge, match="2000 words asked of an arena of 1024"):
        r.submitter.check(request_of(2000))
    with pytest.raises(TooLarge, match="2000 words asked of an arena of 1024"):
        r.submitter.check(request_of(5, max_tokens=2000))


def test_a_late_front_end_can_neither_publish_nor_release(rig: MakeRig, request_of: MakeRequest) -> None:
    """Its lease ended and its slots were drained and leased anew while it slept."""
    r = rig()
    (running,) = r.submitter.submit([request_of()], 0)
    r.scheduler.turn()
    completed = r.ring.read_words()[[running.slot - r.ring.share.slot_begin]]
    r.owner.end(1)
    r.scheduler.turn()
    assert r.owner.lease_state(1) is LeaseState.FREE
    r.owner.grant(r.owner.share(1))
    with pytest.raises(ShareLost):
        r.submitter.release([running], completed)
    with pytest.raises(ShareLost, match="lease has ended"):
        r.submitter.submit([request_of()], 0)
    assert r.owner.slot_states()[SlotState.EMPTY] == 64


def test_a_new_front_end_goes_on_with_the_generations(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig()
    (first,) = r.submitter.submit([request_of()], 0)
    r.owner.end(1)
    r.scheduler.turn()
    r.owner.grant(r.owner.share(1))
    ring = RingClient(r.ring._region, r.ring.share)
    (second,) = Submitter(ring, SlotTracker(ring.share.slot_begin, ring.read_words())).submit([request_of()], 0)
    assert (second.slot, second.generation) == (first.slot, first.generation + 2)
    assert ring.submitted == 1
    r.scheduler.turn()
    assert r.scheduler.claimed[-1] == second.slot


def test_a_cancel_means_one_generation_only(rig: MakeRig, request_of: MakeRequest) -> None:
    r = rig(slots=8)  # one of the front end's
    (first,) = r.submitter.submit([request_of()], 0)
    r.reader.add([first])
    r.scheduler.turn()
    r.reader.poll()
    r.submitter.cancel([first])  # too late: the slot is free
    (second,) = r.submitter.submit([request_of()], 0)
    assert second.slot == first.slot
    assert r.scheduler._cancels[second.slot] == 0
    r.submitter.cancel([first])  # later still: the slot holds another request
    r.scheduler.turn()
    state, finish, generation, _ = _ring.unpack_word(int(r.scheduler._words[second.slot]))
    assert (state, generation) == (SlotState.DECODE_COMPLETED, second.generation)
    assert finish.name != "CANCELLED"
