"""The `hostless` command line. `main` is its entry point; each command is in a file of its own."""

import errno
import os
import sys
from typing import NoReturn

import typer

from services.cli.bench import bench
from services.cli.chat import chat
from services.cli.errors import CliError
from services.cli.fabric import fabric
from services.cli.fit import fit
from services.cli.kv.commands import kv
from services.cli.plan import plan
from services.cli.pull import pull
from services.cli.role import role
from services.cli.sim import sim
from services.cli.status import status
from services.cli.up import up
from services.cli.version import version

app = typer.Typer(
    name="hostless",
    help="Serve large language models with the host CPU out of the loop.\n\n"
    "First time: [bold]hostless pull[/bold], then [bold]hostless up[/bold]; in a second terminal "
    "[bold]hostless chat[/bold] or any OpenAI client on http://127.0.0.1:8000/v1.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
OPEN = {"ignore_unknown_options": True, "allow_extra_args": True}  # services' settings, and a command
app.command(context_settings=OPEN, options_metavar="[OPTIONS] [-- COMMAND]")(up)
for command in (chat, status, role, pull, plan, version):
    app.command()(command)
for group in (bench, fabric, fit, kv, sim):
    app.add_typer(group)


FILE_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EISDIR}
"""Of a file, not of the program: whoever runs it can mend them."""
HINT_FILES = "Other folders: HOSTLESS_RUN, HOSTLESS_MODELS, HOSTLESS_STORE, or XDG_CACHE_HOME for all of them"


def main() -> None:
    """Runs a command. Exit codes: 0 done, 1 failed (stderr says why), 2 wrong usage, 130 interrupted."""
    try:
        app()
    except CliError as error:
        _fail(error)
    except BrokenPipeError:  # who read our output has seen enough: head, say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        _fail(CliError(f"{error.filename or 'a file'}: {error.strerror}", HINT_FILES))


def _fail(error: CliError) -> NoReturn:
    print(f"hostless: {error}", file=sys.stderr)
    if error.hint:
        print(f"  {error.hint}", file=sys.stderr)
    raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
