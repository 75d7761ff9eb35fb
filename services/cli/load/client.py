"""One streamed request, timed. Nothing is decoded: events are counted by pattern."""

import json
import re
import time
from array import array
from dataclasses import dataclass, field

from services.cli.load.connection import ConnectionFailed, Connections

# An event that carries text. In a text that contains such a pattern itself the quotes are escaped.
_TEXT = re.compile(rb'"(?:content|text)": ?"(?!")')
_COMPLETION = re.compile(rb'"completion_tokens": ?(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens": ?(\d+)')
_CACHED = re.compile(rb'"cached_tokens": ?(\d+)')


@dataclass
class Timeline:
    """When one request was sent and its events came (perf_counter seconds)."""

    sent: float
    stamps: "array[float]" = field(default_factory=lambda: array("d"))  # one an event with text
    prompt_tokens: int = 0
    completion_tokens: int = 0  # as the server counts them
    cached_tokens: int = 0
    error: str = ""  # empty: it ended as it should


async def send(connections: Connections, body: bytes) -> Timeline:
    """Sends a request and reads its stream to the end. Whatever goes wrong is in `error`."""
    timeline = Timeline(time.perf_counter())
    events = Events(timeline.stamps)
    try:
        status = await connections.post(body, events.take)
    except ConnectionFailed as error:
        timeline.error = str(error)
        return timeline
    ending = events.ending()
    timeline.completion_tokens = _number(_COMPLETION, ending) or len(timeline.stamps)
    timeline.prompt_tokens = _number(_PROMPT, ending)
    timeline.cached_tokens = _number(_CACHED, ending)
    if status != 200:
        timeline.error = f"{status}: {_told(ending)}"
    elif b"[DONE]" not in ending:
        timeline.error = f"the stream was cut after: {ending[-200:].decode(errors='replace')}"
    elif not timeline.stamps:
        timeline.error = "no text came"
    return timeline


class Events:
    """Stamps the events of a body that comes in pieces, cut anywhere."""

    def __init__(self, stamps: "array[float]") -> None:
        self._stamps = stamps
        self._rest = b""  # the start of a line
        self._ending = self._last = b""

    def take(self, piece: bytes) -> None:
        now = time.perf_counter()
        if self._rest:
            piece, self._rest = self._rest + piece, b""
        if not piece.endswith(b"\n"):  # what follows the last whole line waits for its end
            cut = piece.rfind(b"\n") + 1
            piece, self._rest = piece[:cut], piece[cut:]
        found = len(_TEXT.findall(piece))
        for _ in range(found):
            self._stamps.append(now)
        self._last = piece
        if not found or b"completion_tokens" in piece or b"[DONE]" in piece:
            self._ending += piece
            self._last = b""

    def ending(self) -> bytes:
        """All that may hold usage, errors or [DONE]: pieces without text, those that name them, and the last."""
        return self._ending + self._last + self._rest


def _told(body: bytes) -> str:
    """The message of an error as OpenAI's API has it, or the start of what came instead."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return body[:200].decode(errors="replace")


def _number(pattern: re.Pattern[bytes], text: bytes) -> int:
    found = pattern.search(text)
    return int(found.group(1)) if found else 0
