"""A snapshot of a mesh as tables for a terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.mesh.snapshot import EngineState, Snapshot

GOOD, BAD = "green", "red"


def of(seen: Snapshot) -> Iterator[RenderableType]:
    """A headline, then services, then engines."""
    state = Text("ready", style=GOOD) if seen.ready else Text(f"not ready: {seen.reason}", style=BAD)
    figures = "".join(f"   {label} {value:,.0f}" for label, value in seen.figures.items())
    yield Text.assemble((seen.url, "bold"), "  ", state, figures)
    yield _services(seen)
    if seen.scheduler_problem:
        yield Text(seen.scheduler_problem, style=BAD)
    elif seen.engines:
        yield _engines(seen.engines)
    else:
        yield Text("no engine has reported to the global scheduler", style=BAD)


def _services(seen: Snapshot) -> Table:
    table = Table("service", "state", "address", "pid", "restarts", box=None, header_style="dim", pad_edge=False)
    for service in seen.services:
        state = Text("up", style=GOOD) if service.healthy else Text(service.problem[:60], style=BAD)
        table.add_row(service.name, state, service.address, str(service.pid or ""), str(service.restarts or ""))
    return table


def _engines(engines: list[EngineState]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("engine", no_wrap=True)
    table.add_column("role", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("model", overflow="ellipsis", no_wrap=True)
    for name in ("running", "waiting", "pages used", "tokens out", "hit rate"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("slots by state")
    for engine in engines:
        table.add_row(
            engine.engine_id,
            engine.role,
            _state(engine),
            engine.model,
            str(engine.running),
            str(engine.waiting),
            f"{engine.pages - engine.free_pages:,} / {engine.pages:,}",
            f"{engine.generated_tokens:,}",
            f"{engine.hit_rate:.0%}",
            ", ".join(f"{state} {count:,}" for state, count in engine.slots.items()),
        )
    return table


def _state(engine: EngineState) -> Text:
    if not engine.live:
        return Text("gone", style=BAD)
    return Text("accepting", style=GOOD) if engine.accepting else Text("not accepting", style="yellow")
