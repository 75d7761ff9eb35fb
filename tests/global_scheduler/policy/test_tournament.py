"""The tournament against sorting."""

from hypothesis import given
from hypothesis import strategies as st

from services.global_scheduler.policy.tournament import Tournament

steps = st.lists(st.tuples(st.sampled_from(["enter", "set", "clear", "leave"]), st.integers(0, 99), st.integers(0, 9)))


@given(steps)
def test_gives_its_keys_in_order(history: list[tuple[str, int, int]]) -> None:
    tournament = Tournament()
    keys: dict[int, tuple[int, int] | None] = {}
    for verb, which, value in history:
        if verb == "enter":
            seat = tournament.enter()
            assert seat not in keys
            keys[seat] = None
        elif keys:
            seat = sorted(keys)[which % len(keys)]
            if verb == "leave":
                tournament.leave(seat)
                del keys[seat]
            else:
                keys[seat] = (value, seat) if verb == "set" else None
                tournament.set(seat, keys[seat])
        assert list(tournament.ascending()) == sorted(key for key in keys.values() if key)
