"""What a parser makes of a model's text."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A call of the function `name`. Its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the last call's arguments, which are JSON as far as the model wrote JSON."""

    text: str


Piece = str | CallBegins | Arguments
"""A string is content."""


class Parser(Protocol):
    """Reads one answer, in pieces as they come. What it gives, joined, depends on the text alone, not on how that was
    cut.

    A call stands once its name is known and its arguments have begun: from there on they are passed on as they are, so
    an answer that is cut off leaves a call with a part of its arguments. What turns out to be no call before that is
    given back as content, with all that was around it. White space beside a call is dropped.
    """

    def push(self, text: str) -> list[Piece]:
        """What is certain now."""
        ...

    def finish(self) -> list[Piece]:
        """What was held back, once no text follows."""
        ...
