"""Where commands put their results."""

import sys
from pathlib import Path

from rich.console import Console

from services.cli.errors import UsageError

FILE_WIDTH = 160


def terminal() -> Console:
    """stdout: as wide as the terminal, or, where there is none to say, wide enough for any table."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)


def require_writable(path: Path | None) -> None:
    """Raises UsageError for a file that can't be written, before hours of work are lost; "-" is stdout."""
    if path is None or str(path) == "-":
        return
    try:
        path.open("ab").close()
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from None
