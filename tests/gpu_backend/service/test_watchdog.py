"""When an engine counts as stuck."""

import pytest

from services.gpu_backend.watchdog import Watchdog


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_idle_is_not_stuck(clock: Clock) -> None:
    dog = Watchdog(10, clock)
    for beat in range(100):
        clock.now += 5
        assert dog.look(beat, 7, unfinished=0) == ""


def test_a_scheduler_without_turns_is_stuck_until_it_turns(clock: Clock) -> None:
    dog = Watchdog(10, clock)
    assert dog.look(1, 0, 0) == ""
    clock.now = 9
    assert dog.look(1, 0, 0) == ""
    clock.now = 10
    assert dog.look(1, 0, 0) == "the scheduler has made no turn for 10 s"
    assert dog.look(2, 0, 0) == ""


def test_requests_that_do_not_get_on_are_stuck_though_the_scheduler_turns(clock: Clock) -> None:
    dog = Watchdog(10, clock)
    for beat in range(11):
        clock.now = beat
        said = dog.look(beat, 7, unfinished=3 if beat else 0)
    assert said == "none of 3 requests has got on for 10 s"
    assert dog.look(11, 8, unfinished=3) == ""


def test_the_patience_counts_from_the_first_request(clock: Clock) -> None:
    dog = Watchdog(10, clock)
    dog.look(1, 7, unfinished=0)
    clock.now = 500
    assert dog.look(2, 7, unfinished=0) == ""
    clock.now = 509
    assert dog.look(3, 7, unfinished=1) == ""
