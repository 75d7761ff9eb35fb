"""What the gateway measures, kept as plain numbers (a token must cost next to nothing), told to Prometheus on scrape.

Names are those that vLLM's users know, under the prefix `hostless:`. All times are seconds.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 1, 2.5, 5)
REQUEST_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
QUEUE_S = (0.001, 0.01, 0.05, *REQUEST_S[1:])
TOKENS = tuple(scale * 10**power for power in range(6) for scale in (1, 2, 5))


class Histogram:
    """Counts of values by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, values at or under it), the last one +Inf."""
        rows, below = [], 0
        for bound, count in zip((*map(repr, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            below += count
            rows.append((bound, float(below)))
        return rows


@dataclass
class ModelMetrics:
    """Of one model. `waiting` and `running` count choices."""

    waiting: int = 0
    running: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_S))
    second_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_S))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(BETWEEN_TOKENS_S))
    per_output_token: Histogram = field(default_factory=lambda: Histogram(BETWEEN_TOKENS_S))
    request: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    queue: Histogram = field(default_factory=lambda: Histogram(QUEUE_S))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    generation_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    generated: int = 0
    cached: int = 0
    finished: Counter[str] = field(default_factory=Counter)


class TokenClock:
    """Times of one choice's tokens, counted from when its HTTP request arrived (time.monotonic).

    Tokens that come together share the time since the one before equally.
    """

    __slots__ = ("_arrived", "_last", "_metrics", "first", "tokens_seen")

    def __init__(self, metrics: ModelMetrics, arrived: float) -> None:
        self._metrics = metrics
        self._arrived = arrived
        self._last = 0.0
        self.first = 0.0
        self.tokens_seen = 0

    def tokens(self, count: int, now: float) -> None:
        seen, metrics = self.tokens_seen, self._metrics
        self.tokens_seen = seen + count
        metrics.generated += count
        if seen:
            if seen == 1:
                metrics.second_token.observe(now - self._arrived)
            metrics.between_tokens.observe((now - self._last) / count, count)
        else:
            self.first = now
            metrics.first_token.observe(now - self._arrived)
            if count > 1:
                metrics.second_token.observe(now - self._arrived)
        self._last = now

    def end(self) -> None:
        """Call once, when the choice has finished well."""
        if self.tokens_seen > 1:
            self._metrics.per_output_token.observe((self._last - self.first) / (self.tokens_seen - 1))


@dataclass
class Metrics:
    """Of the process."""

    models: dict[str, ModelMetrics] = field(default_factory=dict)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By HTTP status, and code of the error or, without one, its type: few, whatever clients send."""

    def of(self, model: str) -> ModelMetrics:
        return self.models.setdefault(model, ModelMetrics())

    def tidy(self, model: str) -> None:
        """Forgets a model that never did anything: clients can't make labels by asking for what isn't there."""
        metrics = self.models.get(model)
        if metrics and not (metrics.waiting or metrics.running or metrics.generated or metrics.finished):
            del self.models[model]


_HISTOGRAMS = (
    ("time_to_first_token_seconds", "first_token", "From a request's arrival to its first token."),
    ("time_to_second_token_seconds", "second_token", "From a request's arrival to its second token."),
    ("inter_token_latency_seconds", "between_tokens", "Between one token and the next."),
    ("time_per_output_token_seconds", "per_output_token", "Mean of a choice's tokens after its first."),
    ("e2e_request_latency_seconds", "request", "From a request's arrival to its end, of those that finished."),
    ("request_queue_time_seconds", "queue", "In the gateway's queue."),
    ("request_prompt_tokens", "prompt_tokens", "Prompt tokens of a choice."),
    ("request_generation_tokens", "generation_tokens", "Generated tokens of a choice."),
)


def model_families(models: dict[str, ModelMetrics]) -> Iterator[Metric]:
    label = ["model_name"]
    running = GaugeMetricFamily("hostless:num_requests_running", "Choices handed to the tokenizer.", labels=label)
    waiting = GaugeMetricFamily("hostless:num_requests_waiting", "Choices in the gateway's queue.", labels=label)
    for model, metrics in models.items():
        running.add_metric([model], metrics.running)
        waiting.add_metric([model], metrics.waiting)
    yield from (running, waiting)
    for name, attribute, help in _HISTOGRAMS:
        family = HistogramMetricFamily(f"hostless:{name}", help, labels=label)
        for model, metrics in models.items():
            histogram: Histogram = getattr(metrics, attribute)
            family.add_metric([model], buckets=histogram.cumulative(), sum_value=histogram.total)
        yield family
    counters: tuple[tuple[str, str, Callable[[ModelMetrics], float]], ...] = (
        ("prompt_tokens", "Prompt tokens of choices that ended.", lambda model: model.prompt_tokens.total),
        ("generation_tokens", "Tokens that came from the engines.", lambda model: model.generated),
        ("prefix_cache_queries", "Prompt tokens looked up in the KV store.", lambda model: model.prompt_tokens.total),
        ("prefix_cache_hits", "Prompt tokens whose KV came from the store.", lambda model: model.cached),
    )
    for name, help, read in counters:
        yield _counter(name, help, label, (([model], read(metrics)) for model, metrics in models.items()))
    yield _counter(
        "request_success",
        "Choices ended, by reason: stop, length, abort (the client left) or error.",
        ["model_name", "finished_reason"],
        (([model, reason], count) for model, metrics in models.items() for reason, count in metrics.finished.items()),
    )


def process_families(metrics: Metrics, connected: bool) -> Iterator[Metric]:
    yield GaugeMetricFamily("hostless:tokenizer_up", "1 while the session to the tokenizer stands.", float(connected))
    refused = ((list(labels), count) for labels, count in metrics.refused.items())
    yield _counter("request_refused", "Requests answered with an error.", ["status", "code"], refused)


def _counter(name: str, help: str, labels: list[str], rows: Iterable[tuple[list[str], float]]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"hostless:{name}", help, labels=labels)
    for values, count in rows:
        family.add_metric(values, count)
    return family
