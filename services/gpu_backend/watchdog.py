"""Whether the engine still moves, judged from its counters by an injected clock."""

from collections.abc import Callable

Clock = Callable[[], float]


class Watchdog:
    """Stuck means: for `patience_s`, the scheduler made no turn, or it holds requests and none got on."""

    def __init__(self, patience_s: float, clock: Clock) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._heartbeat = self._progress = -1
        self._beat_at = self._progress_at = clock()

    def look(self, heartbeat: int, progress: int, unfinished: int) -> str:
        """Why the engine is stuck, in words; empty if it isn't. Call it more often than the patience.

        heartbeat: turns of the scheduler. progress: any counter that grows whenever a request gets on.
        """
        now = self._clock()
        if heartbeat != self._heartbeat:
            self._heartbeat, self._beat_at = heartbeat, now
        if progress != self._progress or not unfinished:
            self._progress, self._progress_at = progress, now
        if now - self._beat_at >= self._patience_s:
            return f"the scheduler has made no turn for {now - self._beat_at:.0f} s"
        if now - self._progress_at >= self._patience_s:
            return f"none of {unfinished} requests has got on for {now - self._progress_at:.0f} s"
        return ""
