"""The arena against the obvious reference: an array that says who owns each word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.arena import Arena, ArenaFull, Span, TooLarge


@given(
    begin=st.integers(0, 100),
    count=st.integers(0, 600),
    moves=st.lists(st.tuples(st.booleans(), st.integers(1, 200), st.integers(0, 1 << 30)), max_size=80),
)
def test_never_hands_out_a_word_twice_and_finds_room_whenever_there_is_some(
    begin: int, count: int, moves: list[tuple[bool, int, int]]
) -> None:
    arena = Arena(begin, count)
    owner = ["free" if begin <= word < begin + count else "outside" for word in range(begin + count + 50)]
    held: list[Span] = []
    for allocate, words, which in moves:
        if allocate:
            try:
                span = arena.allocate(words)
            except TooLarge:
                assert words > arena.capacity
            except ArenaFull:
                assert arena.largest < words
                assert words > arena.free_words // (arena.live + 1)
            else:
                assert span.words == words
                assert set(owner[span.begin : span.begin + words]) == {"free"}
                owner[span.begin : span.begin + words] = ["held"] * words
                held.append(span)
        elif held:
            span = held.pop(which % len(held))
            arena.free(span)
            owner[span.begin : span.begin + span.words] = ["free"] * span.words
        arena.check()
        assert arena.live == len(held)
    for span in held:
        arena.free(span)
    arena.check()
    assert arena.largest == arena.free_words == arena.capacity


def test_ranges_never_share_a_cache_line() -> None:
    arena = Arena(5, 200)
    spans = [arena.allocate(3) for _ in range(4)]
    assert all(span.begin % 16 == 0 for span in spans)
    assert len({span.begin // 16 for span in spans}) == 4


def test_a_range_is_given_back_once() -> None:
    arena = Arena(0, 64)
    span = arena.allocate(10)
    arena.free(span)
    with pytest.raises(ValueError, match="no range is held at word 0"):
        arena.free(span)


def test_too_large_is_not_full() -> None:
    arena = Arena(0, 64)
    with pytest.raises(TooLarge, match="65 words asked of an arena of 64"):
        arena.allocate(65)
    arena.allocate(64)
    with pytest.raises(ArenaFull, match="1 words asked, 0 free"):
        arena.allocate(1)
    with pytest.raises(ValueError, match="at least one word"):
        arena.allocate(0)
