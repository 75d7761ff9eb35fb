"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere in the text: Hermes, Qwen."""

from services.gateway.tool_calls.call_parser import CallParser
from services.gateway.tool_calls.call_reader import CallReader
from services.gateway.tool_calls.json_text import MOST_SPACE, SPACE, skip_space
from services.gateway.tool_calls.pieces import Piece

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(CallParser):
    """Of content, white space and the beginning of a mark are held."""

    closing = ("}", CLOSE)

    def __init__(self) -> None:
        super().__init__()
        self._opened = ""  # a mark, white space around it
        self._behind_call = False

    def _outside(self, text: str, pieces: list[Piece]) -> str | None:
        return self._after_mark(text, pieces) if self._opened else self._content(text, pieces)

    def _ended(self, is_call: bool) -> None:
        self._behind_call = is_call

    def _left(self) -> list[Piece]:
        text = self._opened + self._held
        return [text] if text and not (self._behind_call and not text.strip(SPACE)) else []

    def _content(self, text: str, pieces: list[Piece]) -> str | None:
        text, self._held = self._held + text, ""
        at = text.find(OPEN)
        if at >= 0:
            space = _space_before(text, at)
            self._give(text[:space], pieces)
            self._opened = text[space : at + len(OPEN)]
            return text[at + len(OPEN) :]
        mark = next((n for n in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:n])), 0)
        space = _space_before(text, len(text) - mark)
        self._give(text[:space], pieces)
        self._held = text[space:]
        return None

    def _after_mark(self, text: str, pieces: list[Piece]) -> str | None:
        text, self._held = self._held + text, ""
        at = skip_space(text, 0)
        if at == len(text):
            self._held = text
            return None
        opened, self._opened = self._opened, ""
        if at is None or text[at] != "{":
            self._give(opened, pieces)
            return text
        self._call = CallReader(opened + text[:at])
        return text[at:]

    def _give(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(text)
            self._behind_call = False


def _space_before(text: str, end: int) -> int:
    """Where the white space begins that ends at `end`, as much as is held back."""
    return max(len(text[:end].rstrip(SPACE)), end - MOST_SPACE)
