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

    __slots__ = ("_before", "_held", "_nesting", "is_call", "rest")

    def __init__(self, before: str) -> None:
        """`before` is what is given back in front of an object that is no call."""
        self._before = before
        self._held: list[str] = []
        self._nesting = Nesting()
        self.is_call = False
        """Certain once it is True."""
        self.rest: str | None = None
        """What follows, once the arguments or an object that is no call have ended."""

    def push(self, text: str) -> list[Piece]:
        """Once `rest` is not None that was all."""
        if self.is_call:
            return self._arguments(text)
        self._held.append(text)
        head = self._head()
        if _is_no_call(head):
            return self._refuse(1)
        if (match := _HEAD.match(head)) and (name := _string(match.group(1))):
            held = "".join(self._held)
            self.is_call, self._nesting = True, Nesting()
            return [CallBegins(name), *self._arguments(held[match.end() :])]
        end = self._nesting.feed(text)
        if end is None:
            return []
        held = "".join(self._held)
        end += len(held) - len(text)
        call = _whole(held[:end])
        if call is None:
            return self._refuse(end)
        self.is_call, self.rest = True, held[end:]
        return call

    def finish(self) -> list[Piece]:
        """What was held, once no text follows."""
        return [] if self.is_call else self._refuse(None)

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


def _is_no_call(head: str) -> bool:
    """Whether the first key, as far as it is there, says so."""
    inside = head[1:].lstrip(SPACE)
    if not inside:
        return len(head) >= _HEAD_CHARS
    key, quote, _ = inside[1 : _LONGEST_KEY + 2].partition('"')
    return inside[0] != '"' or (key not in _KEYS if quote else len(key) > _LONGEST_KEY)


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
