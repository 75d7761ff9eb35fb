"""`hostless sim`: the cluster on this machine, driven by the live scheduler's own policies (docs/simulator.md)."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from services.cli.console import terminal
from services.cli.errors import UsageError
from services.cli.simulation import Ask, cluster_of, plain_errors, show, simulated

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
    show(simulated([system], ask), out)


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
    outcomes = simulated(systems.split(","), ask)
    show(outcomes, out)
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
        raise UsageError(f"--over {over}: not known", f"one of {', '.join(kinds)}")
    fixed = Ask(model, nodes, workload, agents, rate, seconds, hardware, storage_nics, seed)
    outcomes, jcts = [], {name: list[float]() for name in systems.split(",")}
    with plain_errors():
        asked = [Ask(**{**vars(fixed), over: kinds[over](text)}) for text in values.split(",")]
    for ask in asked:
        for outcome in simulated(systems.split(","), ask):
            outcomes.append(outcome)
            jcts[outcome.system].append(outcome.jct_s)
    show(outcomes, out)
    if picture:
        picture.write_text(bars(f"{model}: JCT by {over}", values.split(","), jcts, " s"))


@sim.command()
def replay(
    log: Annotated[Path, typer.Argument(help="A request log of this mesh, with what was measured.")],
    system: Annotated[str, typer.Option(help="What ran.")] = "dualpath",
    mesh: Annotated[
        Path | None, typer.Option(help="What bench/dualpath.py kept of its mesh; instead of model, nodes and hardware.")
    ] = None,
    model: Model = "ds-660b",
    nodes: Nodes = "1P1D",
    hardware: Gpu = "hopper",
) -> None:
    """Fidelity: predict a live run from its log, and compare with what it measured."""
    from services.global_scheduler.simulator.fidelity import read_mesh
    from services.global_scheduler.simulator.fidelity import replay as compared
    from services.global_scheduler.simulator.systems import system_named

    table = Table("quantity", "requests", "predicted s", "measured s", "error")
    with plain_errors():
        if mesh:
            live = read_mesh(mesh)
            rows = compared(log, live, live.tuned(system_named(system)), live.timing)
        else:
            rows = compared(log, cluster_of(model, nodes, hardware, 0), system_named(system))
    for row in rows:
        figures = (f"{row.predicted:.4f}", f"{row.measured:.4f}", f"{row.error:+.1%}")
        table.add_row(row.quantity, str(row.requests), *figures)
    terminal().print(table)
