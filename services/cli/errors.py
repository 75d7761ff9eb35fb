"""Errors that a person at a terminal reads."""

INTERRUPTED = 130
"""Exit code of what Ctrl-C has cut short."""


class CliError(Exception):
    """What went wrong, and (hint) what to do about it. The command ends with `exit_code`."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(CliError):
    """An option, an argument, a setting or a port is wrong: nothing was begun."""

    exit_code = 2
