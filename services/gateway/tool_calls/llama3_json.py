"""`{"name": ..., "parameters": {...}}` as the whole answer, `;` between several: Llama 3.1 and later."""

from services.gateway.tool_calls.call_reader import CallReader
from services.gateway.tool_calls.json_text import SPACE, Closing, skip_space
from services.gateway.tool_calls.pieces import Piece

PYTHON_TAG = "<|python_tag|>"
"""May come first. As a control token it has no text."""


class Llama3JsonParser:
    """An answer that begins otherwise is content to its end; so is what follows a call and is none."""

    def __init__(self) -> None:
        self._held = ""
        self._call: CallReader | None = None
        self._closing: Closing | None = None
        self._first = True
        self._content = False

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        rest: str | None = text
        while rest:
            rest = self._step(rest, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        if self._call is not None:
            return self._call.finish()
        behind_call = not self._first and not self._held.strip(SPACE)
        return [self._held] if self._held and not behind_call else []

    def _step(self, text: str, pieces: list[Piece]) -> str | None:
        """Takes what it can in the state that it is in; gives the rest, for the next one."""
        if self._content:
            pieces.append(text)
            return None
        if self._call is not None:
            pieces += self._call.push(text)
            rest = self._call.rest
            if rest is not None:
                if self._call.is_call:
                    self._closing = Closing("}", ";")
                else:
                    self._content = True
                self._first, self._call = False, None
            return rest
        if self._closing is not None:
            rest = self._closing.feed(text)
            if rest is not None:
                self._closing = None
            return rest
        return self._before_call(text)

    def _before_call(self, text: str) -> str | None:
        text, self._held = self._held + text, ""
        at = skip_space(text, 0)
        if self._first and at is not None and at < len(text):
            if text.startswith(PYTHON_TAG, at):
                at = skip_space(text, at + len(PYTHON_TAG))
            elif PYTHON_TAG.startswith(text[at:]):
                at = len(text)
        if at == len(text):
            self._held = text
            return None
        if at is None or text[at] != "{":
            self._content = True
            return text
        self._call = CallReader(text[:at])
        return text[at:]
