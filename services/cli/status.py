"""`hostless status`: what the mesh does now."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer

from services.cli.chat import URL
from services.cli.console import terminal
from services.cli.errors import CliError
from services.cli.mesh import run_folder, snapshot, tables
from services.cli.mesh.run_folder import Mesh, RunningService
from services.cli.openai_api import OpenAiApi

SCHEDULER = "127.0.0.1:7010"


def status(
    url: Annotated[str, typer.Option(envvar="HOSTLESS_URL", help="Gateway; default: the mesh here.")] = "",
    scheduler: Annotated[
        str,
        typer.Option(envvar="HOSTLESS_SCHEDULER", help="host:port of the global scheduler elsewhere."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show services, engines, slots by state, KV pages and hit rates.

    [bold]Examples[/bold]

    hostless status               # the mesh that hostless up started here

    hostless status --url http://host:8000 --scheduler host:7010

    watch -n 1 hostless status

    Exit code 0: ready. 1: not ready, or not there.
    """
    mesh = run_folder.find(url)
    seen = asyncio.run(snapshot.take(mesh or _elsewhere(url or URL, scheduler or SCHEDULER)))
    if not any(service.healthy for service in seen.services):
        if not url and (folder := run_folder.starting()):
            raise CliError("a mesh is starting on this machine, and not ready yet", f"Its logs: {folder}")
        raise CliError(f"nothing answers at {seen.url}", "Start it with: hostless up. Elsewhere: --url, --scheduler")
    if as_json:
        typer.echo(json.dumps(asdict(seen), indent=1))
    else:
        console = terminal()
        for table in tables.of(seen, console.width):
            console.print(table)
    raise typer.Exit(0 if seen.ready else 1)


def _elsewhere(url: str, scheduler: str) -> Mesh:
    """A mesh that this machine's run folders don't know."""
    gateway = OpenAiApi(url).root.partition("://")[2]
    return Mesh(
        pid=0,
        url=f"http://{gateway}",
        started=0.0,
        services=(
            RunningService("global_scheduler", 0, scheduler, "", "", 0),
            RunningService("gateway", 0, gateway, gateway, "", 0),
        ),
    )
