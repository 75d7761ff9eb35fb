"""OpenTelemetry traces: exported by OTLP when OTEL_EXPORTER_OTLP_ENDPOINT is set, else free of cost.

HOSTLESS_TRACE_FILE=path appends finished spans as JSON lines instead, for machines without a collector.
One trace a request: the gateway's root span travels as W3C `traceparent`, in Submit and in gRPC metadata.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

tracer = trace.get_tracer("hostless")
_propagator = TraceContextTextMapPropagator()
_file: IO[str] | None = None


def setup(service: str) -> None:
    """Installs the exporter that the environment asks for. Call once, early."""
    global _file
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    path = os.environ.get("HOSTLESS_TRACE_FILE")
    if not endpoint and not path:
        return
    provider = TracerProvider(resource=Resource.create({"service.name": f"hostless-{service}"}))
    if endpoint:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    if path:
        _file = open(path, "a", buffering=1)  # noqa: SIM115 - lives as long as the process
        line = ConsoleSpanExporter(out=_file, formatter=lambda span: span.to_json(indent=None) + "\n")
        provider.add_span_processor(BatchSpanProcessor(line))
    trace.set_tracer_provider(provider)


def shutdown() -> None:
    """Flushes what is still queued for export."""
    with suppress(AttributeError):  # the no-op provider has no shutdown
        trace.get_tracer_provider().shutdown()  # type: ignore[attr-defined]


def recording() -> bool:
    """Whether spans go anywhere; callers skip building expensive ones when not."""
    return isinstance(trace.get_tracer_provider(), TracerProvider)


def traceparent(context: Context | None = None) -> str:
    """W3C header of the current (or given) span; empty when there is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier.get("traceparent", "")


def context_of(carrier: Mapping[str, str]) -> Context:
    """The context that a carrier's `traceparent` names; an empty one if it has none."""
    return _propagator.extract(carrier)
