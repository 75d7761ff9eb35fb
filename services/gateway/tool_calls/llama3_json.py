"""`{"name": ..., "parameters": {...}}` as the whole answer, `;` between several: Llama 3.1 and later."""

from services.gateway.tool_calls.call_parser import CallParser
from services.gateway.tool_calls.call_reader import CallReader
from services.gateway.tool_calls.json_text import SPACE, skip_space
from services.gateway.tool_calls.pieces import Piece

PYTHON_TAG = "<|python_tag|>"
"""May come first. As a control token it has no text."""


class Llama3JsonParser(CallParser):
    """An answer that begins otherwise is content to its end; so is what follows a call and is none."""

    closing = ("}", ";")

    def __init__(self) -> None:
        super().__init__()
        self._first = True
        self._content = False

    def _outside(self, text: str, pieces: list[Piece]) -> str | None:
        if not self._content:
            return self._before_call(text)
        pieces.append(text)
        return None

    def _ended(self, is_call: bool) -> None:
        self._first, self._content = False, not is_call

    def _left(self) -> list[Piece]:
        behind_call = not self._first and not self._held.strip(SPACE)
        return [self._held] if self._held and not behind_call else []

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
