"""The slot tracker against a set."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.fabric import _ring
from services.fabric.ring import Finish, SlotState
from services.tokenizer.slots import SlotTracker, empty_word


def word(state: SlotState, generation: int = 1) -> int:
    return _ring.slot_word(state, Finish.NONE, generation, 0)


@given(
    busy=st.lists(st.booleans(), min_size=1, max_size=20),
    moves=st.lists(st.tuples(st.sampled_from(["acquire", "release", "refresh"]), st.integers(0, 99)), max_size=100),
)
def test_hands_out_each_free_slot_once(busy: list[bool], moves: list[tuple[str, int]]) -> None:
    begin = 7
    states = [SlotState.DECODE_COMPLETED if b else SlotState.EMPTY for b in busy]
    words = np.array([word(state) for state in states], np.uint64)
    tracker = SlotTracker(begin, words)
    free = {begin + i for i, b in enumerate(busy) if not b}
    foreign = {begin + i for i, b in enumerate(busy) if b}
    held: dict[int, int] = {}
    generations = dict.fromkeys(range(begin, begin + len(busy)), 1)
    for move, which in moves:
        if move == "acquire":
            claim = tracker.acquire()
            assert (claim is None) == (not free)
            if claim is not None:
                free.remove(claim.slot)
                generations[claim.slot] += 1
                assert claim.generation == generations[claim.slot]
                held[claim.slot] = claim.generation
        elif move == "release" and held:
            slot = sorted(held)[which % len(held)]
            tracker.release(slot, empty_word(held.pop(slot)))
            free.add(slot)
        elif move == "refresh" and foreign:
            slot = sorted(foreign)[which % len(foreign)]  # its old request has been drained
            foreign.remove(slot)
            words[slot - begin] = word(SlotState.EMPTY)
            tracker.refresh(words)  # the other words are out of date, and must not matter
            free.add(slot)
        tracker.check()
        assert tracker.available == len(free)


def test_takes_slots_in_turn() -> None:
    tracker = SlotTracker(0, np.full(3, word(SlotState.EMPTY), np.uint64))
    first = tracker.acquire()
    assert first is not None
    tracker.release(first.slot, empty_word(first.generation))
    assert [claim.slot for claim in (tracker.acquire() for _ in range(3)) if claim] == [1, 2, 0]
    assert tracker.acquire() is None


def test_generations_go_round_without_zero() -> None:
    tracker = SlotTracker(0, np.array([word(SlotState.EMPTY, _ring.GENERATION_MASK)], np.uint64))
    claim = tracker.acquire()
    assert claim is not None
    assert claim.generation == 1


def test_refuses_to_take_back_what_is_not_held() -> None:
    tracker = SlotTracker(4, np.full(2, word(SlotState.EMPTY), np.uint64))
    for slot in (3, 4, 6):
        with pytest.raises(ValueError, match=f"slot {slot} is not held"):
            tracker.release(slot, empty_word(1))
    with pytest.raises(ValueError, match="3 words for 2 slots"):
        tracker.refresh(np.zeros(3, np.uint64))
