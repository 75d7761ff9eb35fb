"""Where commands print their results."""

import sys

from rich.console import Console

FILE_WIDTH = 160


def terminal() -> Console:
    """stdout: as wide as the terminal, or, where there is none to say, wide enough for any table."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
