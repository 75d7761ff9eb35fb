"""One trace a request: the tokenizer's spans are children of the gateway's, in their order."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.common import telemetry
from tests.tokenizer.service.rig import make_rig, submit
from tests.waiting import until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(telemetry, "tracer", provider.get_tracer("hostless"))
    yield exporter
    provider.shutdown()


async def test_spans_of_a_request(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    async with make_rig(tmp_path) as rig:
        await rig.collect(submit(request_id="abc", traceparent=PARENT, stop=["never"]))
        await until(lambda: len(spans.get_finished_spans()) >= 7)
        ours = [s for s in spans.get_finished_spans() if s.attributes and s.attributes.get("request_id") == "abc"]
        *before, notice, decode = ours
        assert [span.name for span in before] == ["tokenize", "schedule", "ring submit", "queue", "prefill"]
        assert (notice.name, decode.name) == ("notice", "decode")
        for span in ours:
            assert span.parent
            assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
            assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
            assert span.start_time is not None
            assert span.end_time is not None
            assert span.start_time <= span.end_time
        prefill = next(span for span in ours if span.name == "prefill")
        assert (prefill.start_time, prefill.end_time) == (20, 30)  # as the fake engine reports
