"""Timelines to figures. Pure. Times in milliseconds, rates a second.

TTFT: sent to first event. TTST: sent to second. ITL: between events of a stream. TPOT: of a stream, (last event -
first) / (tokens - 1). A server may send several tokens in an event (tokens_per_event says how many): ITL is about
events, TPOT about tokens.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.cli.load.client import Timeline


@dataclass(frozen=True)
class Spread:
    """Of one measure. All zero when count is."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    p99_9: float
    max: float


@dataclass(frozen=True)
class Summary:
    requests: int
    failed: int
    errors: dict[str, int]  # the most frequent ones
    seconds: float  # first request sent to last event
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tokens_per_event: float
    requests_per_s: float
    good_requests_per_s: float  # of those that kept every limit; without limits as requests_per_s
    tokens_per_s: float
    slowest_to_fastest: float  # rate of the slowest stream by that of the fastest; 0: fewer than two streams
    ttft_ms: Spread
    ttst_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread


def summarize(timelines: Sequence[Timeline], limits: Mapping[str, float] | None = None) -> Summary:
    """Figures of the requests that went well; the others are counted. `limits`: milliseconds by name of LIMITED."""
    good = [t for t in timelines if not t.error]
    tokens = sum(t.completion_tokens for t in good)
    events = sum(len(t.stamps) for t in good)
    seconds = max((t.stamps[-1] for t in good), default=0.0) - min((t.sent for t in good), default=0.0)
    tpot = [_tpot(t) for t in good if t.completion_tokens > 1 and t.stamps[-1] > t.stamps[0]]
    kept = [t for t in good if all(LIMITED[name](t) * 1e3 <= most for name, most in (limits or {}).items())]
    gaps = [np.diff(np.asarray(t.stamps)) for t in good]
    return Summary(
        requests=len(timelines),
        failed=len(timelines) - len(good),
        errors=dict(Counter(t.error for t in timelines if t.error).most_common(5)),
        seconds=seconds,
        prompt_tokens=sum(t.prompt_tokens for t in good),
        cached_tokens=sum(t.cached_tokens for t in good),
        completion_tokens=tokens,
        tokens_per_event=tokens / events if events else 0.0,
        requests_per_s=len(good) / seconds if seconds else 0.0,
        good_requests_per_s=len(kept) / seconds if seconds else 0.0,
        tokens_per_s=tokens / seconds if seconds else 0.0,
        slowest_to_fastest=min(tpot) / max(tpot) if len(tpot) > 1 else 0.0,
        ttft_ms=spread([_ttft(t) for t in good]),
        ttst_ms=spread([t.stamps[1] - t.sent for t in good if len(t.stamps) > 1]),
        tpot_ms=spread(tpot),
        itl_ms=spread(np.concatenate(gaps) if gaps else []),
        e2e_ms=spread([_e2e(t) for t in good]),
    )


def _ttft(timeline: Timeline) -> float:
    return timeline.stamps[0] - timeline.sent


def _tpot(timeline: Timeline) -> float:
    """0 of an answer of one token."""
    return (timeline.stamps[-1] - timeline.stamps[0]) / max(1, timeline.completion_tokens - 1)


def _e2e(timeline: Timeline) -> float:
    return timeline.stamps[-1] - timeline.sent


LIMITED = {"ttft": _ttft, "tpot": _tpot, "e2e": _e2e}
"""What a limit may be set for, in seconds of a request that went well."""


def spread(seconds: Sequence[float] | npt.NDArray[np.float64]) -> Spread:
    """Milliseconds out of seconds."""
    values = np.asarray(seconds, dtype=np.float64) * 1e3
    if not len(values):
        return Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p95, p99, p99_9 = np.percentile(values, (50, 95, 99, 99.9)).tolist()
    return Spread(len(values), float(values.mean()), p50, p95, p99, p99_9, float(values.max()))
