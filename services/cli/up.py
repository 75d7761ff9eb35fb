"""`hostless up`: the whole mesh on this machine, in the foreground."""

import asyncio
import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from services.cli.choices import EngineKind, LogLevel, SchedulerKind
from services.cli.errors import CliError, UsageError
from services.cli.mesh import greeting, log_tail, ports, session
from services.cli.mesh.console import ConsoleReporter
from services.cli.mesh.plan import HOST, MeshOptions, ServicePlan, mesh_plan, ports_needed, reachable
from services.cli.mesh.run_folder import Mesh, RunFolder, RunningService
from services.cli.mesh.supervisor import Member, StartFailed, Supervisor

MOST = 64
"""Engines of a kind: a slip of the hand is not to fill the machine's memory with processes."""


def up(
    context: typer.Context,
    host: Annotated[str, typer.Option(envvar="HOSTLESS_UP_HOST", help="Address of the gateway; 0.0.0.0: all.")] = HOST,
    port: Annotated[int, typer.Option(envvar="HOSTLESS_UP_PORT", help="Port of the gateway; 0: a free one.")] = 8000,
    base_port: Annotated[
        int, typer.Option(envvar="HOSTLESS_UP_BASE_PORT", help="First port of the services behind it; 0: free ones.")
    ] = 0,
    model: Annotated[str, typer.Option(envvar="HOSTLESS_UP_MODEL", help="Folder name in the models folder.")] = "",
    engine: Annotated[
        EngineKind,
        typer.Option(
            envvar="HOSTLESS_UP_ENGINE",
            help="torch: on the CPU; cuda: on a GPU; synthetic: no model, a set rate, to load the rest.",
        ),
    ] = EngineKind.torch,
    scheduler: Annotated[
        SchedulerKind | None,
        typer.Option(
            envvar="HOSTLESS_UP_SCHEDULER",
            help="Engine cuda: where steps are decided; device, on the GPU itself, unless told otherwise.",
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="Synthetic engine: tokens/s of each request.", min=0)] = 0.0,
    engines: Annotated[int, typer.Option(envvar="HOSTLESS_UP_ENGINES", help="How many engines.", min=1, max=MOST)] = 1,
    prefill: Annotated[
        int, typer.Option(help="How many engines only prefill; with --decode, instead of --engines.", min=0, max=MOST)
    ] = 0,
    decode: Annotated[int, typer.Option(help="How many engines go on after the first token.", min=0, max=MOST)] = 0,
    policy: Annotated[
        str,
        typer.Option(
            envvar="HOSTLESS_GLOBAL_SCHEDULER_POLICY",
            help="How engines are chosen; dualpath where there are --prefill.",
        ),
    ] = "",
    kvstore: Annotated[bool, typer.Option(help="Keep KV blocks, so that long prompts are not computed twice.")] = True,
    grace: Annotated[float, typer.Option(help="Seconds that running requests have when stopping.", min=0)] = 10.0,
    log_level: Annotated[LogLevel, typer.Option(help="Of the services.")] = LogLevel.info,
) -> None:
    """Start all services on this machine; Ctrl-C stops them.

    [bold]Examples[/bold]

    hostless up                                    # http://127.0.0.1:8000

    hostless up --port 8001 --engines 2

    hostless up --prefill 1 --decode 1             # prefill and decode apart

    hostless up --engine cuda                      # on a GPU, scheduled by it

    hostless up --engine synthetic --rate 60       # no model is computed

    hostless up --held-bytes 4GiB                  # a setting of a service

    hostless up -- hostless chat -m Hello          # up, a command, down

    docs/settings.md lists the settings. One that several services have takes the service's name in front:
    --kvstore-transport tcp. What follows -- runs once the mesh is ready, and its end stops the mesh.
    """
    from services.cli.mesh import given  # all services' settings, which take their time to load
    from services.cli.mesh.checks import check

    _check_roles(prefill, decode, engines, kvstore)
    asked = given.read(context.args, [name for option in context.command.params for name in option.opts])
    _check_command(asked.command)
    count = prefill + decode or engines
    kept = contextlib.ExitStack()  # free ports, until this process ends: a service that starts again finds its own
    ports.require_free(host, port, "of the gateway, --port")
    [chosen] = [port] if port else kept.enter_context(ports.free_ports(1, host))
    options = MeshOptions(
        host=host,
        port=chosen,
        engine=engine.value,
        model=model,
        scheduler=scheduler.value if scheduler else "",
        engines=engines,
        prefill=prefill,
        decode=decode,
        policy=policy,
        kvstore=kvstore,
        threads=0 if asked.names("gpu_backend", "--threads") else _share_of_cores(count),
        rate=rate,
        grace_s=grace,
        log_level=log_level.value,
    )
    inner = _inner_ports(options, base_port, kept)
    plans = given.add(mesh_plan(options, inner), asked)
    check(plans)
    console = Console(stderr=True, highlight=False)
    folder = RunFolder()
    try:
        code = asyncio.run(_run(options, plans, folder, console, asked.command))
    except StartFailed as error:
        raise _explained(error, folder.log(error.name)) from None
    finally:
        folder.close()
        kept.close()
    raise typer.Exit(code)


def _explained(error: StartFailed, log: Path) -> CliError:
    if reason := log_tail.reason(log):
        return CliError(f"{error.name}: {reason}", f"Its log: {log}")
    tail = "\n".join(f"    {line[:300]}" for line in log_tail.read(log, 15))
    return CliError(f"{error.name} {error}", f"The end of {log}:\n{tail}")


def _check_roles(prefill: int, decode: int, engines: int, kvstore: bool) -> None:
    if bool(prefill) != bool(decode):
        raise UsageError("--prefill and --decode belong together", "It takes an engine of each to serve a request.")
    if prefill and engines > 1:
        raise UsageError("--engines and --prefill exclude each other", "--prefill and --decode say how many there are.")
    if prefill and not kvstore:
        raise UsageError("--prefill and --decode need the KV store", "Leave --no-kvstore out.")


def _check_command(command: Sequence[str]) -> None:
    if command and not shutil.which(command[0]):
        raise UsageError(
            f"there is no command {command[0]!r}, to run once the mesh is ready",
            "A value without its option? Options: hostless up --help",
        )


def _share_of_cores(engines: int) -> int:
    """CPU threads of each engine; 0, as the engine likes, for one, or where the environment says how many."""
    if engines == 1 or "HOSTLESS_GPU_BACKEND_THREADS" in os.environ:
        return 0
    return max(1, len(os.sched_getaffinity(0)) // engines)


async def _run(
    options: MeshOptions, plans: list[ServicePlan], folder: RunFolder, console: Console, command: Sequence[str]
) -> int:
    url = f"http://{reachable(options.host)}:{options.port}"
    reporter = ConsoleReporter(console)
    started = time.time()

    def publish(members: Sequence[Member]) -> None:
        services = tuple(_running(member, folder) for member in members)
        try:
            folder.write(Mesh(os.getpid(), url, started, services))
        except OSError as error:  # it serves all the same
            why = f"{folder.path}: {error.strerror}; other commands find this mesh by --url {url} only"
            console.print(f"[yellow]![/yellow] {why}", soft_wrap=True)

    def ready() -> None:
        reporter.quiet()
        console.print(f"\n[bold]{url}[/bold] serves the OpenAI API. Logs: {folder.path}", soft_wrap=True)
        if command:
            console.print(f"[dim]$ {escape(shlex.join(command))}[/dim]\n", soft_wrap=True)
        else:
            console.print(greeting.of(url), markup=False, soft_wrap=True)

    supervisor = Supervisor(plans, folder.log, reporter, publish)
    console.print(f"starting {len(plans)} services")
    try:
        return await session.run(supervisor, ready, command, url)
    finally:
        reporter.quiet()


def _running(member: Member, folder: RunFolder) -> RunningService:
    plan = member.plan
    log = str(folder.log(plan.name))
    return RunningService(plan.name, member.child.pid, plan.address, plan.metrics, log, member.restarts)


def _inner_ports(options: MeshOptions, base_port: int, kept: contextlib.ExitStack) -> list[int]:
    count = ports_needed(options)
    if not base_port:
        return kept.enter_context(ports.free_ports(count, HOST))
    inner = list(range(base_port, base_port + count))
    for port in inner:
        ports.require_free(HOST, port, f"of {count} from --base-port {base_port} on")
    return inner
