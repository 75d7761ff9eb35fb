"""News of one HTTP request's choices, merged until it is read: a slow client costs memory once, not a queue."""

import asyncio
from collections.abc import Iterable

from hostless.v1 import frontend_pb2 as pb
from services.gateway.errors import SERVER_ERROR, ApiError, from_tokenizer, unavailable
from services.gateway.metrics import TokenClock

MAX_PARTS = 256
"""Texts that wait in a choice before they are joined into one."""

FINISH_REASONS = {pb.FINISH_STOP: "stop", pb.FINISH_LENGTH: "length"}


class Choice:
    """One generation. `finish` is None while it runs, then "stop", "length" or "error" (then `error` says more).
    `tool_format` is known before there is news."""

    __slots__ = ("_changed", "_clock", "_parts", "_reply", "error", "finish", "id", "index", "tool_format", "usage")

    def __init__(self, reply: "Reply", index: int, clock: TokenClock) -> None:
        self._reply = reply
        self._clock = clock
        self._parts: list[str] = []
        self._changed = False
        self.index = index
        self.id = 0  # within the session; set on submitting
        self.tool_format: int = pb.TOOL_FORMAT_NONE
        self.finish: str | None = None
        self.error: ApiError | None = None
        self.usage: pb.Usage | None = None

    def deliver(self, delta: pb.Delta, now: float) -> None:
        """Takes a delta that came at `now` (time.monotonic)."""
        self._reply.heard = True
        if text := delta.text:
            if len(self._parts) >= MAX_PARTS:
                self._parts = ["".join(self._parts)]
            self._parts.append(text)
        if delta.tool_format:
            self.tool_format = delta.tool_format
            return  # of the prompt: nothing is generated yet
        if tokens := delta.tokens:
            self._clock.tokens(tokens, now)
        if finish := delta.finish:
            self._end(finish, delta)
        self._tell()

    def lost(self) -> None:
        """The tokenizer is gone, and the generation with it."""
        self.fail(unavailable("the tokenizer was lost while the request ran; try again", "tokenizer_lost"))

    def fail(self, error: ApiError) -> None:
        """Ends the choice with an error unless it has ended. The text so far can still be taken."""
        if self.finish is None:
            self.finish, self.error = "error", error
            self._tell()

    def take(self) -> str:
        """All text that came since the last call."""
        parts = self._parts
        if not parts:
            return ""
        text = parts[0] if len(parts) == 1 else "".join(parts)
        parts.clear()
        return text

    def seen(self) -> None:
        """The next delta is news again."""
        self._changed = False

    def _end(self, finish: int, delta: pb.Delta) -> None:
        if delta.HasField("usage"):
            self.usage = delta.usage
        if reason := FINISH_REASONS.get(finish):
            self.finish = reason
            return
        self.finish = "error"
        if finish == pb.FINISH_ERROR:
            self.error = from_tokenizer(delta.error)
        else:
            self.error = unavailable("the request was cancelled by the server")

    def _tell(self) -> None:
        if not self._changed:
            self._changed = self._reply.tell(self)


class Reply:
    """All choices of one HTTP request. One task reads it; the session's reader writes it."""

    def __init__(self, clocks: Iterable[TokenClock], only_ends: bool = False) -> None:
        """`only_ends`: the reader is woken when a choice ends, not by text."""
        self.choices = [Choice(self, index, clock) for index, clock in enumerate(clocks)]
        self.heard = False
        self._only_ends = only_ends
        self._news: list[Choice] = []
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._watch: asyncio.TimerHandle | None = None

    def watch_silence(self, timeout_s: float) -> None:
        """From now on, choices that hear nothing for `timeout_s` seconds (noticed after twice that at the latest)
        fail with 504."""
        self._watch = self._loop.call_later(timeout_s, self._check_silence, timeout_s)

    @property
    def open(self) -> bool:
        """Whether a choice still runs."""
        return any(choice.finish is None for choice in self.choices)

    @property
    def error(self) -> ApiError | None:
        """Of the first choice that failed."""
        return next((choice.error for choice in self.choices if choice.error), None)

    def tell(self, choice: Choice) -> bool:
        """Puts `choice` on the news; False if nobody wants to know yet."""
        if self._only_ends and choice.finish is None:
            return False
        self._news.append(choice)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return True

    async def wait(self) -> None:
        """Returns as soon as there is news: at the latest when the silence timeout makes some."""
        if not self._news:
            self._waiter = self._loop.create_future()
            await self._waiter

    def take_news(self) -> list[Choice]:
        """The choices that have changed since the last call."""
        news, self._news = self._news, []
        for choice in news:
            choice.seen()
        return news

    async def ended(self) -> None:
        """Returns when no choice runs any more, or one has failed."""
        while self.open and self.error is None:
            await self.wait()
            self.take_news()

    def fail(self, error: ApiError) -> None:
        """Ends every choice that still runs."""
        for choice in self.choices:
            choice.fail(error)

    def close(self) -> None:
        """Ends the watch over silence. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()

    def _check_silence(self, timeout_s: float) -> None:
        if self.heard:
            self.heard = False
            self.watch_silence(timeout_s)
        else:
            text = f"the request made no progress for {timeout_s:g} s"
            self.fail(ApiError(504, text, type=SERVER_ERROR, code="timeout"))
