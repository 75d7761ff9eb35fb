"""A request's spans below the gateway's: queue, tokenize, schedule, ring submit, prefill, notice, decode."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from services.common import telemetry
from services.tokenizer.reader import Report


class RequestTrace:
    """Children of `traceparent`; costs nothing where spans go nowhere."""

    def __init__(self, traceparent: str, request_id: str) -> None:
        self._context: Context | None = None
        self._attributes = {"request_id": request_id}
        self._published_ns = self._seen_ns = 0
        if telemetry.recording():
            self._context = telemetry.context_of({"traceparent": traceparent} if traceparent else {})

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        if self._context is None:
            yield
            return
        with telemetry.tracer.start_as_current_span(
            name, context=self._context, kind=SpanKind.INTERNAL, attributes=self._attributes
        ):
            yield

    def published(self, started_ns: int) -> None:
        """The ring submit ends now: from the engine's choice, `started_ns`, to the slot word's publication."""
        self._published_ns = time.time_ns()
        self._add("ring submit", started_ns, self._published_ns)

    def seen(self) -> None:
        """Tokens have come out of the ring."""
        self._seen_ns = self._seen_ns or time.time_ns()

    def reported(self, report: Report) -> None:
        """What the engine says of its part, by its own clock."""
        self._add("queue", self._published_ns, report.prefill_ns)
        self._add("prefill", report.prefill_ns, report.first_token_ns)
        self._add("notice", report.first_token_ns, self._seen_ns)
        self._add("decode", report.first_token_ns, report.finished_ns)

    def _add(self, name: str, begin_ns: int, end_ns: int) -> None:
        if self._context is None or not begin_ns or not end_ns:
            return
        span = telemetry.tracer.start_span(
            name, context=self._context, attributes=self._attributes, start_time=begin_ns
        )
        span.end(max(begin_ns, end_ns))  # two clocks: an end before the begin would be refused by readers
