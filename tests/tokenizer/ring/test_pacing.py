import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.pacing import AdaptivePoll, PollSettings

SETTINGS = PollSettings(busy_s=0.0005, idle_s=0.02, first_s=0.0001)


def polls_until(pace: AdaptivePoll, now: float, news_at: float, wait: float) -> tuple[int, float, float]:
    """Polls until the news of `news_at` is found: how many polls that took, when, and the next wait."""
    polls = 0
    while True:
        now += wait
        polls += 1
        found = now >= news_at
        wait = pace.polled(now, found)
        if found:
            return polls, now, wait


@given(st.floats(0.0001, 0.2))
def test_learns_an_even_pace(gap: float) -> None:
    pace = AdaptivePoll(SETTINGS)
    pace.begin(0.0)
    now, wait, polls = 0.0, SETTINGS.busy_s, 0
    for step in range(1, 60):
        polls, now, wait = polls_until(pace, now, max(step * gap, now), wait)
    assert now - 59 * gap <= max(0.3 * gap, 60 * SETTINGS.busy_s)
    if 0.004 < gap < 0.02:
        assert polls <= 4
    assert SETTINGS.busy_s <= wait <= SETTINGS.idle_s


def test_a_long_prefill_does_not_slow_the_reading_of_later_steps() -> None:
    pace = AdaptivePoll(SETTINGS)
    pace.begin(0.0)
    _, now, wait = polls_until(pace, 0.0, 2.0, SETTINGS.busy_s)
    for step in range(1, 40):
        _, now, wait = polls_until(pace, now, 2.0 + 0.001 * step, wait)
    assert wait < 0.002


@given(st.floats(0.0001, 1.0), st.floats(0.0005, 0.02))
def test_a_first_token_alone_is_seen_soon_whatever_the_pace_before(prefill: float, gap: float) -> None:
    pace = AdaptivePoll(SETTINGS)
    pace.begin(0.0)
    now, wait = 0.0, SETTINGS.first_s
    for step in range(1, 20):
        _, now, wait = polls_until(pace, now, max(step * gap, now), wait)
    pace.begin(now)
    polls, seen, _ = polls_until(pace, now, now + prefill, SETTINGS.first_s)
    assert seen - now - prefill <= max(SETTINGS.first_s, prefill / 60)
    assert polls <= 700


def test_backs_off_while_nothing_comes() -> None:
    pace = AdaptivePoll(SETTINGS)
    pace.begin(5.0)
    waits = [pace.polled(5.0 + quiet, False) for quiet in (0.0, 0.01, 0.05, 2.0)]
    assert waits == sorted(waits)
    assert waits[0] == SETTINGS.first_s
    assert waits[-1] == SETTINGS.idle_s


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="poll intervals"):
        PollSettings(busy_s=0.1, idle_s=0.01)
    with pytest.raises(ValueError, match="poll intervals"):
        PollSettings(busy_s=0.001, idle_s=0.01, first_s=0.002)
