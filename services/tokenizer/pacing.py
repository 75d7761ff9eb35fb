"""When to poll next (B13): often while tokens come, rarely while they don't, never when nothing is in flight."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PollSettings:
    """Seconds between polls: at least `busy_s`, at most `idle_s`. `first_s`: the least while nothing but first tokens
    is awaited."""

    busy_s: float = 0.001
    idle_s: float = 0.01
    first_s: float = 0.00025

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.busy_s <= self.idle_s:
            raise ValueError(
                "poll intervals must be 0 < first_s <= busy_s <= idle_s, "
                f"not {self.first_s}, {self.busy_s} and {self.idle_s}"
            )


class AdaptivePoll:
    """Pure policy: told what polls brought and when, says how long to wait.

    Steps of an engine come at an even pace. So it learns the gap between two polls that brought news,
    sleeps through most of it, and then looks at an eighth of the gap. A shorter gap is believed at once,
    a longer one slowly: a long prefill must not make the next decode steps arrive in lumps. Its own end is seen
    within a thirty-second of the time it took; where nothing runs beside it, within a sixty-fourth.
    """

    def __init__(self, settings: PollSettings) -> None:
        self._settings = settings
        self._gap = settings.busy_s
        self._last_news = 0.0
        self._first = False

    def begin(self, now: float) -> None:
        """A request entered an idle ring: its first token is what comes next."""
        self._last_news = now
        self._first = True

    def polled(self, now: float, news: bool) -> float:
        """Answers the seconds until the next poll, after one at `now` that brought news or did not."""
        quiet = now - self._last_news
        if news:
            self._gap = min(quiet, self._gap + (quiet - self._gap) / 8)
            self._last_news = now
            quiet = 0.0
            self._first = False
        if self._first:
            return min(max(quiet / 64, self._settings.first_s), self._settings.idle_s)
        most = 0.75 * self._gap - quiet
        wait = max(most, self._gap / 8, quiet / 32)
        return min(max(wait, self._settings.busy_s), self._settings.idle_s)
