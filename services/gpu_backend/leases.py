"""Who holds which of the ring's front-end places, by an injected clock (B7, B12).

A place goes free -> leased -> ending -> cooling -> free. The scheduler core drains an ending place and
says so in the ring; it then cools for a grace time, so that one-sided writes that its late holder has
under way land before anyone else may own the memory.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from services.fabric.ring import LeaseState, Share

Clock = Callable[[], float]
"""Seconds, monotonic."""


class NoPlace(Exception):
    """Every front-end place is leased, or not yet free again."""


class LeaseEnded(Exception):
    """No such lease: it ran out, was detached, or was never given by this engine."""


class Places(Protocol):
    """The ring's side of leases; RingOwner is one."""

    front_ends: int

    def share(self, front_end: int) -> Share: ...
    def lease_state(self, front_end: int) -> LeaseState: ...
    def grant(self, share: Share) -> None: ...
    def end(self, front_end: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Lease:
    lease_id: int
    front_end_id: str  # for logs
    share: Share


class LeaseTable:
    """Each place is free, held, ending or cooling, never two of them. Not thread-safe."""

    def __init__(self, places: Places, ttl_s: float, grace_s: float, clock: Clock) -> None:
        self.ttl_s = ttl_s
        self._grace_s = grace_s
        self._places = places
        self._clock = clock
        self._free = list(range(places.front_ends))
        self._held: dict[int, Lease] = {}  # by lease id
        self._renewed: dict[int, float] = {}
        self._ending: set[int] = set()
        self._cooling: dict[int, float] = {}  # place -> since when

    @property
    def held(self) -> list[Lease]:
        return list(self._held.values())

    @property
    def settled(self) -> bool:
        """Nothing is ending or cooling: every place is free or held, and `tick` waits for nobody."""
        return not self._ending and not self._cooling

    def attach(self, front_end_id: str) -> Lease:
        """Leases a free place; its slots are empty and of new generations. Raises NoPlace."""
        self.tick()
        if not self._free:
            raise NoPlace(
                f"all {self._places.front_ends} front-end places are taken: {len(self._held)} leased, "
                f"{len(self._ending)} draining, {len(self._cooling)} cooling; try again in {self.ttl_s:g} s"
            )
        share = self._places.share(self._free[0])
        self._places.grant(share)
        self._free.pop(0)
        lease = Lease(1 + secrets.randbits(63), front_end_id, share)
        self._held[lease.lease_id] = lease
        self._renewed[lease.lease_id] = self._clock()
        return lease

    def renew(self, lease_id: int) -> None:
        """Raises LeaseEnded, also when the lease ran out but `tick` hadn't come to it."""
        self.tick()
        if lease_id not in self._held:
            raise LeaseEnded(f"lease {lease_id} has ended; its requests were cancelled; attach anew")
        self._renewed[lease_id] = self._clock()

    def detach(self, lease_id: int) -> None:
        """Ends a lease at once. Idempotent."""
        if lease_id in self._held:
            self._end(lease_id)

    def end_all(self) -> None:
        for lease_id in list(self._held):
            self._end(lease_id)

    def tick(self) -> list[Lease]:
        """Moves every place on as far as time and the core allow; returns the leases that ran out."""
        now = self._clock()
        late = [key for key, renewed in self._renewed.items() if now - renewed >= self.ttl_s]
        ended = [self._end(lease_id) for lease_id in late]
        for place in [place for place in self._ending if self._places.lease_state(place) is LeaseState.FREE]:
            self._ending.remove(place)
            self._cooling[place] = now
        for place in [place for place, since in self._cooling.items() if now - since >= self._grace_s]:
            del self._cooling[place]
            self._free.append(place)
        return ended

    def _end(self, lease_id: int) -> Lease:
        lease = self._held.pop(lease_id)
        del self._renewed[lease_id]
        self._places.end(lease.share.front_end)
        self._ending.add(lease.share.front_end)
        return lease
