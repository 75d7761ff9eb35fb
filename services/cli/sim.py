"""`hostless sim`: the cluster on this machine, driven by the live scheduler's own policies (docs/simulator.md)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from services.cli.console import terminal
from services.cli.errors import CliError

if TYPE_CHECKING:  # they take their time to load, which only this command should pay
    from services.global_scheduler.simulator.cluster import Cluster
    from services.global_scheduler.simulator.outcome import Outcome
    from services.global_scheduler.simulator.tables import Row
    from services.global_scheduler.simulator.workload import Workload

sim = typer.Typer(name="sim", help="Simulate a cluster: offline or online, one system or all.", no_args_is_help=True)

Model = Annotated[str, typer.Option(help="A shape in simulator/models.toml: ds-660b, ds-27b, qwen2.5-32b.")]
Nodes = Annotated[str, typer.Option("--nodes", help="Prefill and decode nodes, such as 2P4D.")]
Workloads = Annotated[str, typer.Option(help="32k, 48k or 64k: published agent traces; or a Mooncake .jsonl file.")]
Agents = Annotated[int, typer.Option(help="Offline: so many start at once.", min=1)]
Rate = Annotated[float, typer.Option(help="Online: agents a second; 0: offline.", min=0)]
Seconds = Annotated[float, typer.Option(help="Online: agents arrive for so many simulated s.", min=1)]
Gpu = Annotated[str, typer.Option(help="A node in simulator/hardware.toml.")]
Snics = Annotated[int, typer.Option(help="Storage NICs a node; 0: as the hardware file says.", min=0)]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result, to the bit.")]
Out = Annotated[Path | None, typer.Option(help="Write the rows here: .csv or .parquet.")]
Picture = Annotated[Path | None, typer.Option(help="Draw the JCTs (or turns a second) here, as SVG.")]


@dataclass(frozen=True)
class Ask:
    model: str
    nodes: str
    workload: str
    agents: int
    rate: float
    seconds: float
    hardware: str
    storage_nics: int
    seed: int


@sim.command()
def run(
    system: Annotated[str, typer.Argument(help="basic, layerwise, dualpath-rr, dualpath, split, oracle.")] = "dualpath",
    model: Model = "ds-660b",
    nodes: Nodes = "2P4D",
    workload: Workloads = "64k",
    agents: Agents = 256,
    rate: Rate = 0,
    seconds: Seconds = 3000,
    hardware: Gpu = "hopper",
    storage_nics: Snics = 0,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Simulate one system."""
    ask = Ask(model, nodes, workload, agents, rate, seconds, hardware, storage_nics, seed)
    _show(_simulated([system], ask), out)


@sim.command()
def compare(
    systems: Annotated[str, typer.Option(help="Comma-separated; the first is what the others are compared with.")] = (
        "basic,layerwise,dualpath-rr,dualpath,split,oracle"
    ),
    model: Model = "ds-660b",
    nodes: Nodes = "2P4D",
    workload: Workloads = "64k",
    agents: Agents = 256,
    rate: Rate = 0,
    seconds: Seconds = 3000,
    hardware: Gpu = "hopper",
    storage_nics: Snics = 0,
    seed: Seed = 0,
    out: Out = None,
    picture: Picture = None,
) -> None:
    """Simulate several systems on the same workload."""
    from services.global_scheduler.simulator.charts import bars

    ask = Ask(model, nodes, workload, agents, rate, seconds, hardware, storage_nics, seed)
    outcomes = _simulated(systems.split(","), ask)
    _show(outcomes, out)
    if picture:
        jcts = {"JCT": [outcome.jct_s for outcome in outcomes]}
        picture.write_text(bars(f"{model}, {nodes}, {workload}", [o.system for o in outcomes], jcts, " s"))


@sim.command()
def sweep(
    over: Annotated[str, typer.Option(help="agents, rate, nodes or workload.")] = "agents",
    values: Annotated[str, typer.Option(help="Comma-separated.")] = "128,256,512",
    systems: Annotated[str, typer.Option(help="Comma-separated.")] = "basic,dualpath,oracle",
    model: Model = "ds-660b",
    nodes: Nodes = "2P4D",
    workload: Workloads = "64k",
    agents: Agents = 256,
    rate: Rate = 0,
    seconds: Seconds = 3000,
    hardware: Gpu = "hopper",
    storage_nics: Snics = 0,
    seed: Seed = 0,
    out: Out = None,
    picture: Picture = None,
) -> None:
    """Simulate systems over a range of one thing."""
    from services.global_scheduler.simulator.charts import bars

    kinds: dict[str, Callable[[str], str | int | float]] = {
        "agents": int,
        "rate": float,
        "nodes": str,
        "workload": str,
    }
    if over not in kinds:
        raise CliError(f"--over {over}: not known", f"one of {', '.join(kinds)}")
    fixed = Ask(model, nodes, workload, agents, rate, seconds, hardware, storage_nics, seed)
    outcomes, jcts = [], {name: list[float]() for name in systems.split(",")}
    for text in values.split(","):
        ask = Ask(**{**vars(fixed), over: kinds[over](text)})
        for outcome in _simulated(systems.split(","), ask):
            outcomes.append(outcome)
            jcts[outcome.system].append(outcome.jct_s)
    _show(outcomes, out)
    if picture:
        picture.write_text(bars(f"{model}: JCT by {over}", values.split(","), jcts, " s"))


@sim.command()
def replay(
    log: Annotated[Path, typer.Argument(help="A request log of this mesh, with what was measured.")],
    system: Annotated[str, typer.Option(help="What ran.")] = "dualpath",
    model: Model = "ds-660b",
    nodes: Nodes = "1P1D",
    hardware: Gpu = "hopper",
) -> None:
    """Fidelity: predict a live run from its log, and compare with what it measured."""
    from services.global_scheduler.simulator.fidelity import replay as compared
    from services.global_scheduler.simulator.systems import system_named

    table = Table("quantity", "requests", "predicted s", "measured s", "error")
    with _plain_errors():
        rows = compared(log, cluster_of(model, nodes, hardware, 0), system_named(system))
    for row in rows:
        figures = (f"{row.predicted:.4f}", f"{row.measured:.4f}", f"{row.error:+.1%}")
        table.add_row(row.quantity, str(row.requests), *figures)
    terminal().print(table)


def cluster_of(model: str, nodes: str, hardware: str, storage_nics: int) -> "Cluster":
    """Groups as large as the cluster. Raises CliError or ValueError."""
    import re
    from dataclasses import replace

    from services.global_scheduler.simulator.cluster import Cluster
    from services.global_scheduler.simulator.hardware import load_hardware
    from services.global_scheduler.simulator.shapes import load_model

    parts = re.fullmatch(r"(\d+)[Pp](\d+)[Dd]", nodes)
    if not parts:
        raise CliError(f"--nodes {nodes}: not understood", "write prefill and decode nodes as 2P4D")
    node = load_hardware(hardware)
    if storage_nics:
        node = replace(node, storage_nics=storage_nics)
    prefill, decode = int(parts[1]), int(parts[2])
    return Cluster(load_model(model), node, prefill, decode, min(prefill, 2), min(decode, 4))


def workload_of(name: str, seed: int) -> "Workload":
    """Trajectories by the name of their statistics, or from a file. Raises CliError or ValueError."""
    from services.global_scheduler.simulator.importing import read_mooncake
    from services.global_scheduler.simulator.workload import PUBLISHED, generate

    if name in PUBLISHED:
        return generate(PUBLISHED[name], seed)
    if not Path(name).exists():
        raise CliError(f"workload {name}: neither published ({', '.join(PUBLISHED)}) nor a file here")
    return read_mooncake(Path(name))


def _simulated(systems: Sequence[str], ask: Ask) -> "list[Outcome]":
    from services.global_scheduler.simulator.driver import simulate
    from services.global_scheduler.simulator.systems import system_named

    outcomes = []
    with _plain_errors():
        cluster = cluster_of(ask.model, ask.nodes, ask.hardware, ask.storage_nics)
        work = workload_of(ask.workload, ask.seed)
        until_s = float("inf")
        if ask.rate:
            work, until_s = work.open(ask.rate, ask.seconds, ask.seed), ask.seconds
        elif not work.agents:
            work = work.closed(ask.agents)
        for name in systems:
            with progress(f"{name}, {cluster.name}", work.turns) as told:
                outcomes.append(simulate(cluster, system_named(name), work, progress=told, until_s=until_s))
    return outcomes


def _show(outcomes: "Sequence[Outcome]", out: Path | None) -> None:
    from services.global_scheduler.simulator.tables import row, write

    rows: list[Row] = [{**row(o), "speedup": round(outcomes[0].jct_s / o.jct_s, 3)} for o in outcomes]
    table = Table(*rows[0])
    for each in rows:
        table.add_row(*map(str, each.values()))
    terminal().print(table)
    if out:
        with _plain_errors():
            write(rows, out)


@contextmanager
def progress(what: str, turns: int) -> Iterator[Callable[[float, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[at]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True, refresh_per_second=2) as bar:
        task = bar.add_task(what, total=turns, at="")
        yield lambda now, done: bar.update(task, completed=done, at=f"{done}/{turns} turns, {now:.0f} s simulated")


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise CliError(str(error)) from error
