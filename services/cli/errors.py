"""Errors that a person at a terminal reads."""


class CliError(Exception):
    """What went wrong, and (hint) what to do about it. The command ends with `exit_code`."""

    def __init__(self, message: str, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code
