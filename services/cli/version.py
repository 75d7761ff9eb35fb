"""`hostless version`."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import typer


def version() -> None:
    """Print the versions of Hostless and of what it runs on."""
    typer.echo(f"hostless {installed('hostless')}")
    typer.echo(f"python   {platform.python_version()} ({platform.machine()}, {platform.system()})")
    for package in ("torch", "grpcio"):
        try:
            typer.echo(f"{package:<8} {installed(package)}")
        except PackageNotFoundError:
            typer.echo(f"{package:<8} not installed")
