"""JSON in pieces: where a value ends, and what may stand between values."""

import re

SPACE = " \t\r\n"
MOST_SPACE = 64
"""White space that is held back, and so may be dropped, in one place. More of it is content."""

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class Nesting:
    """Finds the end of an object or array, whose first character is the first one fed. Brackets inside strings don't
    count; whether the rest is JSON is not looked at."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, text: str) -> int | None:
        """How many characters of `text` belong to the value if it ends in it."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return None
            at = found.end()
            letter = found.group()
            if letter == '"':
                self._in_string = not self._in_string
            elif letter == "\\":
                self._escaped = True
            else:
                self._depth += 1 if letter in "{[" else -1
                if self._depth <= 0:
                    return at
        return None


class Closing:
    """What closes a call: each of `tokens` at most once, in their order, with white space in front."""

    __slots__ = ("_held", "_tokens")

    def __init__(self, *tokens: str) -> None:
        self._tokens = tokens
        self._held = ""

    def feed(self, text: str) -> str | None:
        """What follows the closing; None while that can't be told."""
        text = self._held + text
        for token in self._tokens:
            at = skip_space(text, 0)
            if at is None:
                break
            if text.startswith(token, at):
                text = text[at + len(token) :]
            elif token.startswith(text[at:]):
                self._held = text
                return None
            self._tokens = self._tokens[1:]  # it was there, or is not
        return text


def skip_space(text: str, at: int) -> int | None:
    """Where the white space ends that begins at `at`; None if it is more than is held back."""
    end = at
    while end < len(text) and text[end] in SPACE:
        end += 1
        if end - at > MOST_SPACE:
            return None
    return end
