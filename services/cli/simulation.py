"""What the commands `hostless sim` and `hostless plan` share: words to clusters and workloads, runs, tables."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from services.cli.console import terminal
from services.cli.errors import UsageError

if TYPE_CHECKING:  # they take their time to load, which only these commands should pay
    from services.global_scheduler.simulator.cluster import Cluster
    from services.global_scheduler.simulator.outcome import Outcome
    from services.global_scheduler.simulator.tables import Row
    from services.global_scheduler.simulator.workload import Workload


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


def cluster_of(model: str, nodes: str, hardware: str, storage_nics: int) -> "Cluster":
    """Groups as large as the cluster. Raises UsageError or ValueError."""
    import re
    from dataclasses import replace

    from services.global_scheduler.simulator.cluster import Cluster
    from services.global_scheduler.simulator.hardware import load_hardware
    from services.global_scheduler.simulator.shapes import load_model

    parts = re.fullmatch(r"(\d+)[Pp](\d+)[Dd]", nodes)
    if not parts:
        raise UsageError(f"--nodes {nodes}: not understood", "write prefill and decode nodes as 2P4D")
    node = load_hardware(hardware)
    if storage_nics:
        node = replace(node, storage_nics=storage_nics)
    prefill, decode = int(parts[1]), int(parts[2])
    return Cluster(load_model(model), node, prefill, decode, min(prefill, 2), min(decode, 4))


def workload_of(name: str, seed: int) -> "Workload":
    """Trajectories by the name of their statistics, or from a file. Raises UsageError or ValueError."""
    from services.global_scheduler.simulator.importing import read_mooncake
    from services.global_scheduler.simulator.workload import PUBLISHED, generate

    if name in PUBLISHED:
        return generate(PUBLISHED[name], seed)
    if not Path(name).exists():
        raise UsageError(f"workload {name}: neither published ({', '.join(PUBLISHED)}) nor a file here")
    return read_mooncake(Path(name))


def simulated(systems: Sequence[str], ask: Ask) -> "list[Outcome]":
    from services.global_scheduler.simulator.driver import simulate
    from services.global_scheduler.simulator.systems import system_named

    outcomes = []
    with plain_errors():
        cluster = cluster_of(ask.model, ask.nodes, ask.hardware, ask.storage_nics)
        work = workload_of(ask.workload, ask.seed)
        until_s = float("inf")
        if ask.rate:
            work, until_s = work.open(ask.rate, ask.seconds, ask.seed), ask.seconds
        elif not work.agents:
            work = work.closed(ask.agents)
        for name in systems:
            with _progress(f"{name}, {cluster.name}", work.turns) as told:
                outcomes.append(simulate(cluster, system_named(name), work, progress=told, until_s=until_s))
    return outcomes


def show(outcomes: "Sequence[Outcome]", out: Path | None) -> None:
    from services.global_scheduler.simulator.tables import row, write

    rows: list[Row] = [{**row(o), "speedup": round(outcomes[0].jct_s / o.jct_s, 3)} for o in outcomes]
    table = Table()
    for name, value in rows[0].items():  # a name is whole, figures go over lines where the terminal is narrow
        table.add_column(name, overflow="fold", no_wrap=isinstance(value, str))
    for each in rows:
        table.add_row(*map(str, each.values()))
    terminal().print(table)
    if out:
        with plain_errors():
            write(rows, out)


@contextmanager
def _progress(what: str, turns: int) -> Iterator[Callable[[float, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[at]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True, refresh_per_second=2) as bar:
        task = bar.add_task(what, total=turns, at="")
        yield lambda now, done: bar.update(task, completed=done, at=f"{done}/{turns} turns, {now:.0f} s simulated")


@contextmanager
def plain_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error
