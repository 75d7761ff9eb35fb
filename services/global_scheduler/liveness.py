"""Leases by an injected clock: whoever renewed within the lease's length is live, nobody else."""

from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds, monotonic."""


class Leases:
    """A lease runs out by the clock alone, so a frozen holder ends up not live without anyone acting."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._renewed: dict[str, float] = {}

    def renew(self, holder: str) -> None:
        self._renewed[holder] = self._clock()

    def drop(self, holder: str) -> None:
        """Idempotent."""
        self._renewed.pop(holder, None)

    def live(self, holder: str) -> bool:
        return holder in self._renewed and self.age_s(holder) < self.lease_s

    def age_s(self, holder: str) -> float:
        """Seconds since the last renewal. Raises KeyError for a holder without a lease."""
        return self._clock() - self._renewed[holder]

    def next_end_s(self) -> float | None:
        """Seconds until the first lease that runs now would run out; None when none runs."""
        left = [self.lease_s - self.age_s(holder) for holder in self._renewed if self.live(holder)]
        return min(left, default=None)
