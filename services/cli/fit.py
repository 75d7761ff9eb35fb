"""`hostless fit`: what schedulers predict from, measured on this machine."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from services.cli.choices import EngineKind
from services.cli.console import require_writable, terminal
from services.cli.errors import CliError, UsageError

if TYPE_CHECKING:
    from services.global_scheduler.policy.attention_time import AttentionTime, Sample

fit = typer.Typer(name="fit", help="Measure what schedulers predict from.", no_args_is_help=True)

SETTING = "--attention-time"


@fit.callback()
def group() -> None:
    """Measure what schedulers predict from."""


@fit.command()
def attention(
    engine: Annotated[EngineKind, typer.Option(help="As for `hostless up`.")] = EngineKind.torch,
    model: Annotated[str, typer.Option(help="Folder name in the models folder.")] = "",
    contexts: Annotated[str, typer.Option(help="Tokens whose KV is there; multiples of 64.")] = "0,256,1024,2048,4096",
    chunks: Annotated[str, typer.Option(help="Tokens computed in a step.")] = "16,64,128,256,512",
    repeats: Annotated[int, typer.Option(help="Measurements of each pair; the median counts.", min=1)] = 3,
    out: Annotated[Path | None, typer.Option(help="Write coefficients and measurements here, as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw measured and predicted times here, as SVG.")] = None,
) -> None:
    """Fit the time of a prefill step to the tokens that it computes and the context they see (D13).

    Starts an engine of its own, with the settings that HOSTLESS_GPU_BACKEND_... give, and runs one prompt a step. The
    fit is request_s + token_s * tokens + pair_s * pairs of a token and one that it sees.

    [bold]Example[/bold]: hostless fit attention --chunks 64,256,512 --out fit.json --picture fit.svg
    """
    from services.global_scheduler.policy.attention_time import fit as fit_to

    require_writable(out)
    require_writable(picture)
    arguments = ["--engine", engine.value, *(["--model", model] if model else [])]
    measured = _measured(arguments, _numbers("contexts", contexts), _numbers("chunks", chunks), repeats)
    time = fit_to(measured)
    terminal().print(_table(measured, time))
    line = f"{SETTING} {time.request_s:.6g},{time.token_s:.6g},{time.pair_s:.6g}"
    worst = max(abs(_residual(sample, time)) for sample in measured)
    typer.echo(f"furthest from the fit: {100 * worst:.0f} %\nfor prefill engines, and for hostless up:\n  {line}")
    if out:
        rows = [sample._asdict() for sample in measured]
        out.write_text(json.dumps({**asdict(time), "setting": line, "samples": rows}, indent=1) + "\n")
    if picture:
        picture.write_text(_picture(measured, time))


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--{name} {text}: not numbers with commas between") from None


def _measured(arguments: Sequence[str], contexts: list[int], chunks: list[int], repeats: int) -> "list[Sample]":
    """The median of each pair, by the engine's own profiler. Raises CliError."""
    from services.global_scheduler.policy.attention_time import Sample

    command = [sys.executable, "-m", "services.gpu_backend.profiling", *arguments, "--repeats", str(repeats)]
    command += ["--contexts", *map(str, contexts), "--chunks", *map(str, chunks)]
    times: dict[tuple[int, int], list[float]] = {}
    for row in _lines(command):
        times.setdefault((row["cached"], row["bsz"]), []).append(row["seconds"])
    return [Sample(cached, bsz, median(spent)) for (cached, bsz), spent in sorted(times.items())]


def _lines(command: list[str]) -> Iterator[dict[str, Any]]:
    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.terminate)
        console = Console(stderr=True, highlight=False)
        bar = stack.enter_context(Progress(*columns, console=console, transient=True, refresh_per_second=2))
        task = bar.add_task("", total=None)
        assert process.stdout is not None
        for line in process.stdout:
            row = json.loads(line)
            if "steps" in row:
                bar.update(task, total=row["steps"])
            else:
                bar.advance(task)
                yield row
        if code := process.wait():
            raise CliError(f"the engine could not be profiled: exit code {code}", "What it said is above.")


def _residual(sample: "Sample", time: "AttentionTime") -> float:
    return time.seconds(sample.cached, sample.bsz) / sample.seconds - 1


def _table(samples: "Sequence[Sample]", time: "AttentionTime") -> Table:
    table = Table("context", "tokens", "measured ms", "fit ms", "off by %", title="a prefill step of one prompt")
    for one in samples:
        spent, predicted = 1e3 * one.seconds, 1e3 * time.seconds(one.cached, one.bsz)
        table.add_row(
            f"{one.cached:,}", f"{one.bsz:,}", f"{spent:.2f}", f"{predicted:.2f}", f"{100 * _residual(one, time):+.1f}"
        )
    return table


def _picture(samples: "Sequence[Sample]", time: "AttentionTime") -> str:
    """A line a chunk size, over the context; the fit's beside it."""
    from services.global_scheduler.simulator.charts import lines

    series: dict[str, list[tuple[float, float]]] = {}
    for bsz in sorted({sample.bsz for sample in samples})[-3:]:
        same = [sample for sample in samples if sample.bsz == bsz]
        series[f"{bsz} tokens"] = [(one.cached, 1e3 * one.seconds) for one in same]
        series[f"{bsz}, fit"] = [(one.cached, 1e3 * time.seconds(one.cached, bsz)) for one in same]
    return lines("a prefill step of one prompt", "context, tokens", series, " ms")
