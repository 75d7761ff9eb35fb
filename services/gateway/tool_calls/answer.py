"""A parser's pieces as OpenAI's clients expect them: deltas of a stream, or a message."""

import itertools
import secrets
from collections.abc import Iterator
from typing import Any

from services.gateway.tool_calls.formats import PARSERS
from services.gateway.tool_calls.pieces import Arguments, CallBegins, Piece

_STEP_CHARS = 4096
"""A parser copies what is left of a text at each mark: all marks of a long one at once would take seconds."""


class Answer:
    """One choice of a chat with tools."""

    def __init__(self, tool_format: int, parallel: bool) -> None:
        """`parallel`: more than one call may be given; otherwise the first one is, and the others are dropped."""
        self._parser = PARSERS[tool_format]()
        self._most = None if parallel else 1
        self._calls = 0

    def push(self, text: str) -> list[dict[str, Any]]:
        """What is certain now, as contents of `delta`."""
        pieces: list[Piece] = []
        for at in range(0, len(text), _STEP_CHARS):
            pieces += self._parser.push(text[at : at + _STEP_CHARS])
        return self._deltas(pieces)

    def finish(self) -> list[dict[str, Any]]:
        """The last deltas, once no text follows."""
        return self._deltas(self._parser.finish())

    def reason(self, finish: str) -> str:
        """The finish_reason: an answer that was cut off stays so, calls or not."""
        return "tool_calls" if self._calls and finish == "stop" else finish

    def message(self, text: str) -> dict[str, Any]:
        """The whole answer at once: what the deltas add up to."""
        content = ""
        calls: list[dict[str, Any]] = []
        for delta in (*self.push(text), *self.finish()):
            content += delta.get("content", "")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append({key: call[key] for key in ("id", "type", "function")})
                else:
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        if not calls:
            return {"content": content}
        return {"content": content or None, "tool_calls": calls}

    def _deltas(self, pieces: list[Piece]) -> list[dict[str, Any]]:
        deltas = []
        for piece in _joined(pieces):
            if isinstance(piece, str):
                deltas.append({"content": piece})
            elif isinstance(piece, CallBegins):
                self._calls += 1
                call = {"id": f"call_{secrets.token_hex(12)}", "type": "function"}
                deltas += self._call({**call, "function": {"name": piece.name, "arguments": ""}})
            else:
                deltas += self._call({"function": {"arguments": piece.text}})
        return deltas

    def _call(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        if self._most is not None and self._calls > self._most:
            return []
        return [{"tool_calls": [{"index": self._calls - 1, **call}]}]


def _joined(pieces: list[Piece]) -> Iterator[Piece]:
    """Neighbours of one kind as one piece; none that is empty."""
    for kind, group in itertools.groupby(pieces, type):
        if kind is CallBegins:
            yield from group
        elif text := "".join(piece.text if isinstance(piece, Arguments) else str(piece) for piece in group):
            yield Arguments(text) if kind is Arguments else text
