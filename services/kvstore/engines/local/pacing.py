"""The write limit: so many bytes a second go to the disk, so that reads keep their latency.

Pure; callers bring the clock.
"""


class TokenBucket:
    """Lets `rate` bytes a second through, and `burst` at once after a pause. What was let through and exceeds the burst
    is a debt that later takers wait for, so that no taker starves, however large it is."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        if rate <= 0 or burst <= 0:
            raise ValueError(f"rate and burst must be above 0, not {rate} and {burst}")
        self._rate, self._burst = rate, burst
        self._level, self._at = burst, now

    def take(self, size: int, now: float) -> float:
        """Takes `size` bytes; returns the seconds to wait before using them."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate) - size
        self._at = now
        return max(0.0, -self._level / self._rate)
