"""Front-end places against a reference: no place ever has two holders, and none is lost."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.fabric.ring import LeaseState, Share
from services.gpu_backend.leases import Lease, LeaseEnded, LeaseTable, NoPlace

TTL, GRACE = 10.0, 4.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Ring:
    """The ring's words of each place; `drain` is what the core does."""

    front_ends = 3

    def __init__(self) -> None:
        self.states = [LeaseState.FREE] * self.front_ends

    def share(self, front_end: int) -> Share:
        return Share(front_end, front_end * 4, 4, front_end * 64, 64, front_end * 64, 64)

    def lease_state(self, front_end: int) -> LeaseState:
        return self.states[front_end]

    def grant(self, share: Share) -> None:
        assert self.states[share.front_end] is LeaseState.FREE
        self.states[share.front_end] = LeaseState.LEASED

    def end(self, front_end: int) -> None:
        assert self.states[front_end] is LeaseState.LEASED
        self.states[front_end] = LeaseState.ENDED

    def drain(self, front_end: int) -> None:
        self.states[front_end] = LeaseState.FREE


class Leases(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock, self.ring = Clock(), Ring()
        self.table = LeaseTable(self.ring, TTL, GRACE, self.clock)
        self.renewed: dict[int, float] = {}  # lease id -> when
        self.leases: dict[int, Lease] = {}  # every lease ever given
        self.drained: set[int] = set()  # places that the core drained and no tick has seen
        self.seen_free: dict[int, float] = {}  # place -> when a tick first saw it drained

    def alive(self) -> set[int]:
        return {key for key, at in self.renewed.items() if self.clock.now - at < TTL}

    def look(self) -> None:
        """What the table does at each tick, in the plainest words."""
        for key in set(self.renewed) - self.alive():
            del self.renewed[key]
        self.seen_free |= dict.fromkeys(self.drained, self.clock.now)
        self.drained.clear()

    def any_lease(self, data: st.DataObject) -> int:
        """Drawn by its number, since the ids are random."""
        return list(self.leases)[data.draw(st.integers(0, len(self.leases) - 1))]

    def resting(self, place: int) -> bool:
        """Draining, or drained too short a time ago."""
        if self.ring.states[place] is not LeaseState.FREE or place in self.drained:
            return True
        return place in self.seen_free and self.clock.now - self.seen_free[place] < GRACE

    @rule()
    def attach(self) -> None:
        held = {self.leases[key].share.front_end for key in self.alive()}
        try:
            lease = self.table.attach("fe")
        except NoPlace:
            taken = [place for place in range(self.ring.front_ends) if place in held or self.resting(place)]
            assert len(taken) == self.ring.front_ends
        else:
            assert lease.lease_id not in self.leases
            assert lease.share.front_end not in self.drained
            assert lease.share.front_end not in held
            drained = self.seen_free.pop(lease.share.front_end, None)
            assert drained is None or self.clock.now - drained >= GRACE
            self.leases[lease.lease_id] = lease
            self.renewed[lease.lease_id] = self.clock.now
        self.look()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        key = self.any_lease(data)
        if key in self.alive():
            self.table.renew(key)
            self.renewed[key] = self.clock.now
        else:
            with pytest.raises(LeaseEnded, match=f"lease {key} has ended"):
                self.table.renew(key)
        self.look()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        key = self.any_lease(data)
        self.table.detach(key)
        self.renewed.pop(key, None)

    @rule(seconds=st.sampled_from([1.0, 3.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        expected = set(self.renewed) - self.alive()
        assert {lease.lease_id for lease in self.table.tick()} == expected
        self.look()

    @rule()
    def core_drains(self) -> None:
        for place, state in enumerate(self.ring.states):
            if state is LeaseState.ENDED:
                self.ring.drain(place)
                self.drained.add(place)

    @invariant()
    def holders_and_ring_agree(self) -> None:
        held = {lease.lease_id for lease in self.table.held}
        assert held == set(self.renewed)
        leased = {place for place, state in enumerate(self.ring.states) if state is LeaseState.LEASED}
        assert leased == {self.leases[key].share.front_end for key in held}
        assert not self.table.settled or LeaseState.ENDED not in self.ring.states

    def teardown(self) -> None:
        self.table.end_all()
        self.core_drains()
        self.table.tick()
        self.clock.now += GRACE
        self.table.tick()
        assert self.table.settled
        assert self.table.held == []
        assert len({self.table.attach("fe").share.front_end for _ in range(self.ring.front_ends)}) == 3


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_place_is_not_reused_before_the_core_drained_it_and_it_cooled() -> None:
    clock, ring = Clock(), Ring()
    table = LeaseTable(ring, TTL, GRACE, clock)
    leases = [table.attach(str(i)) for i in range(3)]
    table.detach(leases[1].lease_id)
    clock.now = 100
    for lease in (leases[0], leases[2]):
        with pytest.raises(LeaseEnded):
            table.renew(lease.lease_id)
    with pytest.raises(NoPlace, match="0 leased, 3 draining, 0 cooling"):
        table.attach("late")
    ring.drain(1)
    with pytest.raises(NoPlace, match="0 leased, 2 draining, 1 cooling"):
        table.attach("late")
    clock.now += GRACE
    assert table.attach("late").share.front_end == 1
