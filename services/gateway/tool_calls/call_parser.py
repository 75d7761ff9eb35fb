"""What parsers of all formats do alike: text outside calls, a call, what closes it, and text again."""

from services.gateway.tool_calls.call_reader import CallReader
from services.gateway.tool_calls.json_text import Closing
from services.gateway.tool_calls.pieces import Piece


class CallParser:
    """A call whose end is not marked as it should be stands all the same."""

    closing: tuple[str, ...]
    """What may follow a call's arguments, in this order."""

    def __init__(self) -> None:
        self._held = ""  # of the text outside calls: what may belong to one
        self._call: CallReader | None = None
        self._closing: Closing | None = None

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        rest: str | None = text
        while rest:
            rest = self._step(rest, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        return self._call.finish() if self._call is not None else self._left()

    def _step(self, text: str, pieces: list[Piece]) -> str | None:
        """Takes what it can in the state that it is in; gives the rest, for the next one."""
        if self._call is not None:
            pieces += self._call.push(text)
            rest = self._call.rest
            if rest is not None:
                is_call, self._call = self._call.is_call, None
                self._closing = Closing(*self.closing) if is_call else None
                self._ended(is_call)
            return rest
        if self._closing is not None:
            rest = self._closing.feed(text)
            if rest is not None:
                self._closing = None
            return rest
        return self._outside(text, pieces)

    def _outside(self, text: str, pieces: list[Piece]) -> str | None:
        """Text that is in no call. Sets `_call` where one may begin, and gives what follows."""
        raise NotImplementedError

    def _ended(self, is_call: bool) -> None:
        """A call ended, or what turned out to be none."""
        raise NotImplementedError

    def _left(self) -> list[Piece]:
        """What was held outside calls, once no text follows."""
        raise NotImplementedError
