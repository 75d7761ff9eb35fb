"""`hostless fabric`: what this machine's network can do for the data plane."""

import typer

from services.cli.errors import CliError

fabric = typer.Typer(name="fabric", help="Look at what memory moves by.", no_args_is_help=True, rich_markup_mode="rich")


@fabric.callback()
def group() -> None:
    """Look at what memory moves by."""


@fabric.command()
def check() -> None:
    """Say what this machine has for RDMA (transport verbs), and what is missing.

    Changes nothing. Ends with exit code 1 when something is missing without which nothing works.

    [bold]Example[/bold]: hostless fabric check
    """
    from services.fabric.verbs.inventory import Verdict, findings

    missing = 0
    for finding in findings():
        typer.echo(f"{finding.verdict.value:<8} {finding.subject}: {finding.fact}")
        if finding.advice:
            typer.echo(f"         {finding.advice}")
        missing += finding.verdict is Verdict.MISSING
    if missing:
        raise CliError(f"{missing} things are missing for RDMA", "transport shm and tcp need none of them")
