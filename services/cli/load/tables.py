"""A summary for a terminal."""

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.load.summary import Summary

MEASURES = (
    ("time to first token", "ttft_ms"),
    ("time to second token", "ttst_ms"),
    ("time per output token", "tpot_ms"),
    ("inter-token latency", "itl_ms"),
    ("whole request", "e2e_ms"),
)


def of(summary: Summary, cpu: Mapping[str, float], limits: Mapping[str, float]) -> Iterator[RenderableType]:
    """Throughput, goodput, latencies, CPU, errors."""
    yield Text(
        f"{summary.requests - summary.failed} of {summary.requests} requests in {summary.seconds:.1f} s: "
        f"{summary.tokens_per_s:,.1f} tokens/s, {summary.requests_per_s:.2f} requests/s; "
        f"{summary.prompt_tokens:,} prompt tokens ({summary.cached_tokens:,} cached), "
        f"{summary.completion_tokens:,} generated, {summary.tokens_per_event:.2f} an event"
    )
    if limits:
        kept = ", ".join(f"{name} {most:g} ms" for name, most in limits.items())
        yield Text(f"goodput: {summary.good_requests_per_s:.2f} requests/s within {kept}")
    if summary.requests > summary.failed:
        yield _latencies(summary)
    if summary.slowest_to_fastest:
        yield Text(f"slowest stream / fastest stream: {summary.slowest_to_fastest:.2f}")
    if cpu and summary.completion_tokens:
        shares = (f"{name} {used / summary.completion_tokens * 1e6:.1f}" for name, used in cpu.items())
        yield Text(f"CPU, µs a token: {', '.join(shares)}")
    for error, count in summary.errors.items():
        yield Text(f"{count} failed: {error}", style="red")


def _latencies(summary: Summary) -> Table:
    table = Table("ms", box=None, header_style="dim", pad_edge=False)
    for name in ("mean", "p50", "p95", "p99", "p99.9", "max"):
        table.add_column(name, justify="right")
    for label, name in MEASURES:
        s = getattr(summary, name)
        table.add_row(label, *(f"{value:,.2f}" for value in (s.mean, s.p50, s.p95, s.p99, s.p99_9, s.max)))
    return table
