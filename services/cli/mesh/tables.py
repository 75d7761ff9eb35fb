"""A snapshot of a mesh as tables for a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.mesh.snapshot import EngineState, ServiceState, Snapshot

GOOD, BAD = "green", "red"
GAP = 2
LONGEST_PROBLEM = 40
SERVICE_COLUMNS = ("service", "state", "address", "pid", "restarts", "/metrics")
ENGINE_COLUMNS = (
    "engine", "role", "state", "running", "waiting", "pages used", "tokens out", "hit rate", "model", "slots by state"
)  # fmt: skip
NUMBERS = ("running", "waiting", "pages used", "tokens out", "hit rate")


def of(seen: Snapshot, width: int) -> Iterator[RenderableType]:
    """A headline, then services, then engines. What a terminal of `width` has no place for is left out at the right."""
    state = Text("ready", style=GOOD) if seen.ready else Text(f"not ready: {seen.reason}", style=BAD)
    figures = "".join(f"   {label} {value:,.0f}" for label, value in seen.figures.items())
    yield Text.assemble((seen.url, "bold"), "  ", state, figures)
    yield _table(SERVICE_COLUMNS, [_service(service) for service in seen.services], width)
    if seen.scheduler_problem:
        yield Text(seen.scheduler_problem, style=BAD)
    elif seen.engines:
        yield _table(ENGINE_COLUMNS, [_engine(engine) for engine in seen.engines], width)
    else:
        yield Text("no engine has reported to the global scheduler", style=BAD)


def _service(service: ServiceState) -> list[Text]:
    why = service.problem if len(service.problem) <= LONGEST_PROBLEM else "not ready"  # the headline has the gateway's
    state = Text("up", style=GOOD) if service.healthy else Text(why, style=BAD)
    pid, restarts = str(service.pid or ""), str(service.restarts or "")
    return [Text(service.name), state, *map(Text, (service.address, pid, restarts, service.metrics))]


def _engine(engine: EngineState) -> list[Text]:
    cells = (
        str(engine.running),
        str(engine.waiting),
        f"{engine.pages - engine.free_pages:,} / {engine.pages:,}",
        f"{engine.generated_tokens:,}",
        f"{engine.hit_rate:.0%}",
        engine.model,
        ", ".join(f"{state} {count:,}" for state, count in engine.slots.items()),
    )
    return [Text(engine.engine_id), Text(engine.role), _state(engine), *map(Text, cells)]


def _state(engine: EngineState) -> Text:
    if not engine.live:
        return Text("gone", style=BAD)
    return Text("accepting", style=GOOD) if engine.accepting else Text("not accepting", style="yellow")


def _table(names: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    shown, used = 0, 0
    for number, name in enumerate(names):
        used += max(len(name), *(row[number].cell_len for row in rows))
        if shown and used > width:
            break
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=True)
        shown += 1
        used += GAP
    for row in rows:
        table.add_row(*row[:shown])
    return table
