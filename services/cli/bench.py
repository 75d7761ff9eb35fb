"""`hostless bench`: load on an OpenAI endpoint, and the latencies that its clients see."""

import json
import math
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from services.cli.chat import here
from services.cli.console import require_writable, terminal
from services.cli.errors import INTERRUPTED, UsageError
from services.cli.kv.bench import bench_kv
from services.cli.mesh import run_folder
from services.cli.openai_api import OpenAiApi

if TYPE_CHECKING:  # they take their time to load, which only this command should pay
    from services.cli.load.client import Timeline
    from services.cli.load.workload import Workload


class Endpoint(StrEnum):
    completions = "completions"
    chat = "chat"


bench = typer.Typer(name="bench", rich_markup_mode="rich")


@bench.callback(invoke_without_command=True)
def endpoint_load(
    context: typer.Context,
    url: Annotated[str, typer.Option(envvar="HOSTLESS_URL", help="Any OpenAI endpoint. Default: the mesh here.")] = "",
    model: Annotated[str, typer.Option(help="Default: the first that the server names.")] = "",
    requests: Annotated[int, typer.Option("--requests", "-n", help="How many in all.", min=1)] = 100,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", help="Closed loop: so many at once.", min=1)] = 16,
    rate: Annotated[float, typer.Option(help="Open loop: Poisson arrivals a second, whatever is running.", min=0)] = 0,
    duration: Annotated[float, typer.Option(help="Closed loop: no new request after so many s.", min=0)] = 0,
    prompt_tokens: Annotated[int, typer.Option(help="Mean length of a prompt.", min=1)] = 128,
    output_tokens: Annotated[int, typer.Option(help="Mean length of an answer.", min=1)] = 128,
    shared_prefix: Annotated[
        int, typer.Option(help="Tokens that all prompts begin with, besides; the store has them.", min=0)
    ] = 0,
    spread: Annotated[float, typer.Option(help="Sigma of log-normal lengths; 0: all the same.", min=0, max=3)] = 0,
    endpoint: Annotated[Endpoint, typer.Option(help="completions: prompts are token ids.")] = Endpoint.completions,
    vocab: Annotated[int, typer.Option(help="Token ids are below this.", min=101)] = 32_000,
    ignore_eos: Annotated[bool, typer.Option(help="Answers of full length (vLLM's extension).")] = True,
    temperature: Annotated[float, typer.Option(min=0, max=2)] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed asks the same.")] = 0,
    warmup: Annotated[int, typer.Option(help="Requests before the measurement.", min=0)] = 1,
    timeout: Annotated[float, typer.Option(help="A stream silent for so many s has failed.", min=0.1)] = 300,
    goodput: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:MS", help="Count requests within ttft:MS, tpot:MS, e2e:MS; may be repeated."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures here; -: stdout, no table.")] = None,
    api_key: Annotated[str, typer.Option(envvar="HOSTLESS_API_KEY")] = "",
) -> None:
    """Measure an OpenAI endpoint: TTFT, TTST, TPOT, ITL and throughput.

    [bold]Examples[/bold]

    hostless bench -c 1 -n 10                      # one after the other

    hostless bench -c 256 -n 1024                  # closed loop, 256 at once

    hostless bench --rate 4 -n 200 --spread 0.8    # open loop, real lengths

    hostless bench --shared-prefix 2048 -n 50      # hits in the KV store

    hostless bench --rate 8 --goodput ttft:200 --goodput tpot:20

    hostless bench --endpoint chat --url https://host --model NAME

    Against a mesh that runs on this machine the CPU time a token of each service is shown too.
    Exit code 1: a request failed.
    """
    if context.invoked_subcommand:
        return
    import uvloop

    from services.cli.load import cpu, driver, tables
    from services.cli.load.connection import Target
    from services.cli.load.summary import LIMITED, summarize
    from services.cli.load.workload import Workload

    limits = _limits(goodput or (), LIMITED)
    require_writable(json_file)
    api = OpenAiApi(url or here(), api_key)
    load = Workload(
        model=model or api.first_model(),
        endpoint=endpoint.value,
        requests=requests,
        concurrency=concurrency,
        rate=rate,
        duration_s=duration,
        prompt_tokens=prompt_tokens,
        shared_prefix=shared_prefix,
        output_tokens=output_tokens,
        spread=spread,
        vocab=vocab,
        ignore_eos=ignore_eos,
        temperature=temperature,
        seed=seed,
    )
    target = Target(api.root + load.path, api_key, timeout)
    if warmup:
        warm = replace(load, requests=warmup, rate=0.0, duration_s=0.0, seed=seed + 1)
        uvloop.run(driver.run(warm, target, lambda _: None))
    console = Console(stderr=True, highlight=False)
    mesh = run_folder.find(api.url)
    before = cpu.seconds(mesh)
    timelines: list[Timeline] = []
    interrupted = False
    with _progress(console, load, timelines) as done:
        try:
            uvloop.run(driver.run(load, target, done))
        except KeyboardInterrupt:  # what has come so far is told
            interrupted = True
    used = cpu.between(before, cpu.seconds(mesh))
    summary = summarize(timelines, limits)
    if json_file:
        _write(
            json_file,
            {"workload": asdict(load), "limits_ms": limits, "machine": _machine(), **asdict(summary), "cpu_s": used},
        )
    if json_file is None or str(json_file) != "-":
        for table in tables.of(summary, used, limits):
            terminal().print(table)
    raise typer.Exit(INTERRUPTED if interrupted else 1 if summary.failed else 0)


bench.command("kv")(bench_kv)


def _limits(given: Sequence[str], known: Collection[str]) -> dict[str, float]:
    limits = {}
    for text in given:
        name, _, most = text.partition(":")
        if name not in known:
            raise UsageError(f"--goodput: {name!r} can't be limited", f"Names: {', '.join(known)}")
        limits[name] = _milliseconds(text, most)
    return limits


def _milliseconds(given: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:  # false for NaN
        raise UsageError(f"--goodput: {given!r} is not NAME:MILLISECONDS", "Like ttft:200")
    return value


@contextmanager
def _progress(
    console: Console, load: "Workload", timelines: "list[Timeline]"
) -> Iterator[Callable[["Timeline"], None]]:
    """What is called with each timeline: it is kept in `timelines`, and a bar advances."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    how = f"{load.rate:g}/s" if load.rate else f"{load.concurrency} at a time"
    # Drawn seldom: its thread takes time from this process, which is measuring.
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as bar:
        task = bar.add_task(f"{load.model}, {how}", total=load.requests)

        def done(timeline: "Timeline") -> None:
            timelines.append(timeline)
            bar.advance(task)

        yield done


def _machine() -> dict[str, object]:
    cpus = len(os.sched_getaffinity(0))
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "cpus": cpus, "system": platform.platform()}


def _write(path: Path, content: dict[str, object]) -> None:
    text = json.dumps(content, indent=1)
    if str(path) == "-":
        typer.echo(text)
    else:
        path.write_text(text + "\n")
