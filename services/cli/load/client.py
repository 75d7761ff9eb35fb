"""One streamed request with as little work an event as can be: on a small machine the client shares the cores
with the server that it measures. Nothing is decoded; events are counted by pattern."""

import re
import time
from array import array
from dataclasses import dataclass, field

import aiohttp

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


async def send(session: aiohttp.ClientSession, url: str, body: bytes) -> Timeline:
    """Sends a request and reads its stream to the end. Whatever goes wrong is in `error`."""
    timeline = Timeline(time.perf_counter())
    try:
        async with session.post(url, data=body) as reply:
            if reply.status != 200:
                timeline.error = f"{reply.status}: {(await reply.text())[:200]}"
                return timeline
            ending = await _read(reply.content, timeline)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        timeline.error = f"{type(error).__name__}: {error}"
        return timeline
    timeline.completion_tokens = _number(_COMPLETION, ending) or len(timeline.stamps)
    timeline.prompt_tokens = _number(_PROMPT, ending)
    timeline.cached_tokens = _number(_CACHED, ending)
    if b"[DONE]" not in ending:
        timeline.error = ending[-200:].decode(errors="replace") or "the stream was cut"
    elif not timeline.stamps:
        timeline.error = "no text came"
    return timeline


async def _read(content: aiohttp.StreamReader, timeline: Timeline) -> bytes:
    """Stamps the events; returns the pieces that may hold usage, errors and [DONE]."""
    stamps, find = timeline.stamps, _TEXT.findall
    rest = ending = b""
    async for piece in content.iter_any():
        now = time.perf_counter()
        if rest:
            piece, rest = rest + piece, b""
        if not piece.endswith(b"\n"):  # what follows the last whole line waits for its end
            cut = piece.rfind(b"\n") + 1
            piece, rest = piece[:cut], piece[cut:]
        found = len(find(piece))
        for _ in range(found):
            stamps.append(now)
        if not found or b"completion_tokens" in piece or b"[DONE]" in piece:
            ending += piece
    return ending + rest


def _number(pattern: re.Pattern[bytes], text: bytes) -> int:
    found = pattern.search(text)
    return int(found.group(1)) if found else 0
