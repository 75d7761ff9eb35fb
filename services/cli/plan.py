"""`hostless plan`: what to build from so many GPUs (D14, D15)."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from services.cli.console import terminal
from services.cli.errors import CliError, UsageError
from services.cli.sim import Gpu, Model, Seed, Snics, Workloads
from services.cli.simulation import plain_errors, workload_of

if TYPE_CHECKING:
    from services.global_scheduler.simulator.planner import Plan


def plan(
    gpus: Annotated[int, typer.Option(help="In all; whole nodes.", min=2)] = 48,
    snics: Snics = 0,
    model: Model = "ds-660b",
    workload: Workloads = "64k",
    hardware: Gpu = "hopper",
    ttft: Annotated[float, typer.Option(help="SLO: mean TTFT in s.", min=0.01)] = 4.0,
    tpot: Annotated[float, typer.Option(help="SLO: mean TPOT in ms.", min=1)] = 50.0,
    window: Annotated[float, typer.Option(help="Simulated s of each run.", min=60)] = 3500,
    seed: Seed = 0,
    picture: Annotated[Path | None, typer.Option(help="Draw the capacities here, as SVG.")] = None,
) -> None:
    """Find the best prefill to decode ratio, alpha, beta and quota for an SLO, by simulation on all cores.

    Prints what it finds as it goes. 48 GPUs take some minutes; the time grows with GPUs and --window.

    [bold]Example[/bold]: hostless plan --gpus 48 --snics 1 --model ds-660b --workload 64k
    """
    from dataclasses import replace

    from services.global_scheduler.simulator.hardware import load_hardware
    from services.global_scheduler.simulator.online import Slo, Window
    from services.global_scheduler.simulator.planner import Wish
    from services.global_scheduler.simulator.planner import plan as planned
    from services.global_scheduler.simulator.shapes import load_model

    with plain_errors():
        node = load_hardware(hardware)
        if snics:
            node = replace(node, storage_nics=snics)
        if gpus % node.gpus or gpus < 2 * node.gpus:
            raise UsageError(f"--gpus {gpus}: not whole nodes", f"a node has {node.gpus}; at least two nodes")
        slo, times = Slo(ttft, tpot / 1000), Window(window * 4 / 7, window * 3 / 7)
        wish = Wish(gpus // node.gpus, load_model(model), node, workload_of(workload, seed), slo, times, seed=seed)
    told = Console(stderr=True, highlight=False)
    try:
        with told.status("simulating"), signals() as look:
            found = planned(wish, lambda words: told.print(words, soft_wrap=True), look)
    except ValueError as error:
        raise CliError(str(error)) from error
    _show(found)
    if picture:
        _draw(found, picture)


@contextmanager
def signals() -> Iterator[Callable[[], None]]:
    """What is yielded raises SystemExit once SIGTERM or Ctrl-C came, so that what runs beside ends too. CliError when
    a process that runs beside was ended by someone else."""
    came: list[int] = []

    def look() -> None:
        if came:
            raise SystemExit(128 + came[0])

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield look
    except Exception as error:
        look()  # a terminal sends Ctrl-C to all processes; some may end before this one, in whatever it does with them
        if isinstance(error, BrokenExecutor):
            raise CliError("a process that simulated was killed", "is there memory for one on each core?") from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(found: "Plan") -> None:
    from services.global_scheduler.simulator.charts import ascii_bars

    console = terminal()
    table = Table("link (D14)", "P/D at least", "P/D at most")
    for bound in found.constraints:
        low, high = (str(end) if end is not None else "" for end in (bound.low, bound.high))
        table.add_row(bound.link.value, "never" if bound.never else low, high)
    console.print(table)
    if found.free:
        words = f"{found.free.low} <= P/D <= {found.free.high}"
        console.print(f"free of bottlenecks: {words}; ends set by {found.free.low_link.value}, "
                      f"{found.free.high_link.value}")  # fmt: skip
    else:
        console.print("no ratio is free of bottlenecks")
    marks = {split.name + ("" if split.inside else " (outside)"): split.agents_per_s for split in found.splits}
    console.print("\ncapacity under the SLO\n" + ascii_bars(marks, " agents/s"))
    best = found.best
    assert best.service is not None
    console.print(
        f"\nbest: {best.name}, {found.tuned_agents_per_s:.3g} agents/s with alpha {found.alpha_tokens}, "
        f"beta {found.beta_tokens} tokens, quota {found.quota.attention_s:g} s\n"
        f"there: TTFT {best.service.ttft_s:.2f} s, TTST {best.service.ttst_s:.3f} s, "
        f"TPOT {best.service.tpot_s * 1000:.1f} ms at {best.agents_per_s:.3g} agents/s"
    )
    for name, lost in found.cost_of_being_wrong().items():
        console.print(f"{name} instead: {lost:.0%} less")


def _draw(found: "Plan", picture: Path) -> None:
    from services.global_scheduler.simulator.charts import bars

    rates = {"agents/s": [split.agents_per_s for split in found.splits]}
    picture.write_text(bars("capacity under the SLO", [split.name for split in found.splits], rates))
