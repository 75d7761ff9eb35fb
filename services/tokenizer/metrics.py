"""The tokenizer's Prometheus metrics. What the poll counts are plain integers, read when scraped."""

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hostless.v1 import frontend_pb2 as pb
from services.tokenizer.request import Request

_SECONDS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

Readings = Callable[[], Iterable[tuple[str, str, float]]]
"""(name, help, value), asked for on the exporter's thread."""


class Metrics(Collector):
    """One of a process."""

    def __init__(self, registry: CollectorRegistry, gauges: Readings, counts: Readings) -> None:
        """`gauges`: what stands now. `counts`: what parts of the service have counted since the start."""
        self.generated = 0
        """Tokens read from rings."""
        self._gauges = gauges
        self._counts = counts
        registry.register(self)
        self.prompt_tokens = Counter("hostless:tokenizer_prompt_tokens", "Of prompts encoded.", registry=registry)
        self.moved = Counter(
            "hostless:tokenizer_moved", "Attempts that ended because an engine was lost.", registry=registry
        )
        self.encode_seconds = Histogram(
            "hostless:tokenizer_encode_seconds",
            "Chat template and tokenizing, the wait for a thread included.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._first_token = Histogram(
            "hostless:tokenizer_first_token_seconds",
            "From a request's arrival here to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._ended = Counter(
            "hostless:tokenizer_requests", "Requests ended, by reason.", labelnames=["reason"], registry=registry
        )

    def ended(self, request: Request) -> None:
        self._ended.labels(pb.FinishReason.Name(request.end).removeprefix("FINISH_").lower()).inc()
        if request.first_token_s is not None:
            self._first_token.observe(request.first_token_s - request.arrived_s)

    def collect(self) -> Iterable[Metric]:
        own = (
            ("generated_tokens", "Tokens read from rings.", float(self.generated)),
            ("cpu_seconds", "Processor time of this process.", time.process_time()),
        )
        for name, help, value in (*own, *self._counts()):
            family = CounterMetricFamily(f"hostless:tokenizer_{name}", help)
            family.add_metric([], value)
            yield family
        for name, help, value in self._gauges():
            yield GaugeMetricFamily(f"hostless:tokenizer_{name}", help, value)
