"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere in the text: Hermes, Qwen."""

from services.gateway.tool_calls.call_reader import CallReader
from services.gateway.tool_calls.json_text import MOST_SPACE, SPACE, Closing, skip_space
from services.gateway.tool_calls.pieces import Piece

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser:
    """A call whose end is not marked as it should be stands all the same."""

    def __init__(self) -> None:
        self._held = ""  # of content: white space, and the beginning of a mark
        self._opened = ""  # a mark, white space around it
        self._call: CallReader | None = None
        self._closing: Closing | None = None
        self._behind_call = False

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        rest: str | None = text
        while rest:
            rest = self._step(rest, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        if self._call is not None:
            return self._call.finish()
        text = self._opened + self._held
        return [text] if text and not (self._behind_call and not text.strip(SPACE)) else []

    def _step(self, text: str, pieces: list[Piece]) -> str | None:
        """Takes what it can in the state that it is in; gives the rest, for the next one."""
        if self._call is not None:
            pieces += self._call.push(text)
            rest = self._call.rest
            if rest is not None:
                self._closing = Closing("}", CLOSE) if self._call.is_call else None
                self._behind_call = self._call.is_call
                self._call = None
            return rest
        if self._closing is not None:
            rest = self._closing.feed(text)
            if rest is not None:
                self._closing = None
            return rest
        if self._opened:
            return self._after_mark(text, pieces)
        return self._content(text, pieces)

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
