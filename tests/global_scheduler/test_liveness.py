"""Leases against a reference that remembers every renewal."""

from hypothesis import given
from hypothesis import strategies as st

from services.global_scheduler.liveness import Leases


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["renew", "drop"]), st.sampled_from("abc")),
        st.tuples(st.just("wait"), st.integers(0, 12)),
    )
)


@given(steps)
def test_live_is_renewed_within_the_lease(history: list[tuple[str, str | int]]) -> None:
    clock = Clock()
    leases = Leases(10, clock)
    renewed: dict[str, float] = {}
    told: set[str] = set()
    for verb, argument in history:
        if isinstance(argument, int):
            clock.now += argument
        elif verb == "renew":
            leases.renew(argument)
            renewed[argument] = clock.now
            told.discard(argument)
        else:
            leases.drop(argument)
            renewed.pop(argument, None)
        ends = {holder: at + 10 for holder, at in renewed.items() if clock.now < at + 10}
        assert {holder for holder in "abc" if leases.live(holder)} == set(ends)
        if verb == "wait":
            lapsed = renewed.keys() - ends.keys() - told
            assert set(leases.lapsed()) == lapsed
            told |= lapsed
        assert leases.next_end_s() == (min(ends.values()) - clock.now if ends else None)


def test_comes_back_with_the_next_report() -> None:
    clock = Clock()
    leases = Leases(10, clock)
    leases.renew("a")
    clock.now = 10
    assert not leases.live("a")
    leases.renew("a")
    assert leases.live("a")
