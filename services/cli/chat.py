"""`hostless chat`: talk to a model in the terminal."""

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from services.cli.conversation import Conversation
from services.cli.errors import INTERRUPTED, CliError
from services.cli.mesh import run_folder
from services.cli.openai_api import OpenAiApi

URL = "http://127.0.0.1:8000"

HELP = """  /reset         forget the conversation      /system TEXT   set the system message, and start anew
  /stats         figures after each answer    /help          this
  /exit, Ctrl-D  leave                        Ctrl-C         cut the answer short"""


def chat(
    message: Annotated[str, typer.Option("--message", "-m", help="Ask this, print the answer, leave. -: stdin.")] = "",
    url: Annotated[str, typer.Option(envvar="HOSTLESS_URL", help="Any OpenAI endpoint. Default: the mesh here.")] = "",
    model: Annotated[str, typer.Option(help="Default: the first that the server names.")] = "",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    temperature: Annotated[float | None, typer.Option(help="0: greedy. Default: the server's.", min=0, max=2)] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.", min=0, max=1)] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="For the same answer again.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print figures after each answer.")] = False,
    api_key: Annotated[str, typer.Option(envvar="HOSTLESS_API_KEY", help="If the server wants one.")] = "",
) -> None:
    """Talk to a model; answers stream. Without -m it is a conversation.

    [bold]Examples[/bold]

    hostless chat

    hostless chat -m "Name three rivers." --temperature 0

    git diff | hostless chat -m - --system "Write a commit message for this diff."
    """
    api = OpenAiApi(url or here(), api_key)
    given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
    body: dict[str, Any] = {"model": model or api.first_model(), **{k: v for k, v in given.items() if v is not None}}
    talk = Conversation(api, body, system, stats)
    if message:
        whole = talk.ask(sys.stdin.read() if message == "-" else message)
        raise typer.Exit(0 if whole else INTERRUPTED)
    _interactive(talk, str(body["model"]))


def here() -> str:
    """URL of the newest mesh that runs on this machine, or the one it would have by default."""
    mesh = run_folder.find()
    return mesh.url if mesh else URL


def _interactive(talk: Conversation, model: str) -> None:
    import readline  # noqa: F401 - gives input() its line editing

    console = Console(stderr=True, highlight=False)
    console.print(f"[bold]{model}[/bold] at {talk.api.url}. /help lists commands.\n")
    while True:
        try:
            line = input("› ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if line == "/exit":
            return
        try:
            if not _command(talk, line) and line:
                talk.ask(line)
        except CliError as error:
            console.print(f"[red]{escape(str(error))}[/red]")


def _command(talk: Conversation, line: str) -> bool:
    """Whether the line was a command, which it has then carried out."""
    match line.split(maxsplit=1):
        case ["/reset"]:
            talk.reset()
        case ["/system", *text]:
            talk.reset(" ".join(text))
        case ["/stats"]:
            talk.stats = not talk.stats
        case ["/help"]:
            print(HELP)
        case [word, *_] if word.startswith("/"):
            print(f"no command {word}\n{HELP}")
        case _:
            return False
    return True
