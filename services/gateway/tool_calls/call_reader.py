"""One call, from the first character of its JSON object to the last one of its arguments."""

import json
import re

from services.gateway.tool_calls.json_text import SPACE, Nesting
from services.gateway.tool_calls.pieces import Arguments, CallBegins, Piece

_KEYS = ("name", "type", "id", "arguments", "parameters")
_LONGEST_KEY = max(map(len, _KEYS))
_NAME_CHARS = 256
_HEAD = re.compile(
    rf'\{{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.){{1,{_NAME_CHARS}}}")\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'.replace(r"\s", f"[{SPACE}]"),
    re.DOTALL,
)
_HEAD_CHARS = 1024
"""A call whose arguments begin later in its object than that is given when the object is complete."""


class CallReader:
    """`{"name": ..., "arguments": {...}}`, or with `parameters` in place of `arguments`; the arguments may be a string
    that holds them. In this order of keys arguments are passed on as they come; in any other the object is read first.
    """

    __slots__ = ("_before", "_held", "_in_arguments", "_nesting", "rest")

    def __init__(self, before: str) -> None:
        """`before` is what is given back in front of an object that is no call."""
        self._before = before
        self._held: list[str] = []
        self._in_arguments = False
        self._nesting = Nesting()
        self.rest: str | None = None
        """What follows: the object's end is not looked at where arguments came as they were. None: all is held."""

    @property
    def is_call(self) -> bool:
        return self._in_arguments

    def push(self, text: str) -> list[Piece]:
        """Once `rest` is not None that was all; it is a call if `is_call`."""
        if self._in_arguments:
            return self._arguments(text)
        self._held.append(text)
        end = self._nesting.feed(text)
        head = self._head()
        if _can_be_call(head) is False:
            return self._refuse(1)
        if (match := _HEAD.match(head)) and (name := _string(match.group(1))):
            held = "".join(self._held)
            self._in_arguments, self._nesting = True, Nesting()
            return [CallBegins(name), *self._arguments(held[match.end() :])]
        if end is None:
            return []
        held = "".join(self._held)
        end += len(held) - len(text)
        call = _whole(held[:end])
        if call is None:
            return self._refuse(end)
        self._in_arguments, self.rest = True, held[end:]
        return call

    def finish(self) -> list[Piece]:
        """What was held, once no text follows."""
        return [] if self._in_arguments else self._refuse(None)

    def _arguments(self, text: str) -> list[Piece]:
        end = self._nesting.feed(text)
        if end is not None:
            self.rest = text[end:]
        return [Arguments(text[:end])]

    def _refuse(self, end: int | None) -> list[Piece]:
        held = "".join(self._held)
        self.rest = held[end:] if end else ""
        return [self._before + held[:end]]

    def _head(self) -> str:
        if len(self._held) > 1 and len(self._held[0]) < _HEAD_CHARS:  # else it is long enough, and is joined once
            self._held[:] = ["".join(self._held)]
        return self._held[0][:_HEAD_CHARS]


def _can_be_call(head: str) -> bool | None:
    """By the first key; None while that can't be told."""
    inside = head[1:].lstrip(SPACE)
    if not inside:
        return None if len(head) < _HEAD_CHARS else False
    if inside[0] != '"':
        return False
    key, quote, _ = inside[1 : _LONGEST_KEY + 2].partition('"')
    if quote:
        return key in _KEYS
    return None if len(key) <= _LONGEST_KEY else False


def _string(text: str) -> str | None:
    try:
        return str(json.loads(text))
    except ValueError:
        return None


def _whole(text: str) -> list[Piece] | None:
    """The call that a whole object is."""
    try:
        value = json.loads(text)
        if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
            return None
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, str) or not 1 <= len(name) <= _NAME_CHARS:
        return None
    return [CallBegins(name), Arguments(arguments)]
