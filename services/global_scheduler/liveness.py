"""Leases by an injected clock: whoever renewed within the lease's length is live, nobody else."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

Clock = Callable[[], float]
"""Seconds, monotonic."""


class Leases:
    """A lease runs out by the clock alone, so a frozen holder ends up not live without anyone acting."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._renewed: dict[str, float] = {}
        self._running: OrderedDict[str, float] = OrderedDict()  # those not said to have lapsed; the oldest first

    def renew(self, holder: str) -> None:
        self._renewed[holder] = self._running[holder] = self._clock()
        self._running.move_to_end(holder)

    def drop(self, holder: str) -> None:
        """Idempotent."""
        self._renewed.pop(holder, None)
        self._running.pop(holder, None)

    def live(self, holder: str) -> bool:
        return holder in self._renewed and self.age_s(holder) < self.lease_s

    def age_s(self, holder: str) -> float:
        """Seconds since the last renewal. Raises KeyError for a holder without a lease."""
        return self._clock() - self._renewed[holder]

    def lapsed(self) -> Iterator[str]:
        """Holders whose leases ran out since the last call. Costs nothing while there are none."""
        while self._running and not self.live(holder := next(iter(self._running))):
            del self._running[holder]
            yield holder

    def next_end_s(self) -> float | None:
        """Seconds until the first lease that runs now would run out; None when none runs."""
        for holder in self._running:
            if self.live(holder):
                return self.lease_s - self.age_s(holder)
        return None
