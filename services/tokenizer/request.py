"""A request's life in the front end: one enum, one transition table, and what its gateway hears of it."""

import enum
import random
import time
from typing import Protocol

from hostless.v1 import frontend_pb2 as pb
from services.tokenizer.encoder import TokenIds
from services.tokenizer.errors import RequestError
from services.tokenizer.text_stream import TextStream
from services.tokenizer.tool_formats import Opening


class State(enum.Enum):
    QUEUED = "queued"  # taken from the session
    ENCODING = "encoding"  # becoming token ids, off the event loop
    SCHEDULING = "scheduling"  # asking the store for its KV and the scheduler for an engine
    SUBMITTED = "submitted"  # given to an engine's ring, no token yet
    RUNNING = "running"  # has tokens
    FINISHED = "finished"  # its last delta is written; nothing follows


TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.ENCODING, State.FINISHED}),
    State.ENCODING: frozenset({State.SCHEDULING, State.FINISHED}),
    State.SCHEDULING: frozenset({State.SCHEDULING, State.SUBMITTED, State.FINISHED}),  # again: it could not be attached
    State.SUBMITTED: frozenset({State.RUNNING, State.SCHEDULING, State.FINISHED}),  # back: its engine was lost
    State.RUNNING: frozenset({State.SCHEDULING, State.FINISHED}),
    State.FINISHED: frozenset(),
}


class IllegalTransition(RuntimeError):
    """A bug: the request went where its state has no way to."""


class Sink(Protocol):
    """Where a request's deltas go: its session."""

    def opens(self, id: int, opening: Opening) -> None: ...
    def text(self, id: int, text: str, tokens: int) -> None: ...
    def end(self, delta: pb.Delta) -> None: ...


class Request:
    """One Submit. Deltas leave through `sink` in order; after `finish` none does."""

    def __init__(self, submit: pb.Submit, sink: Sink) -> None:
        self.submit = submit
        self.id: int = submit.id
        self.state = State.QUEUED
        self.seed = submit.sampling.seed if submit.sampling.HasField("seed") else random.getrandbits(64)
        self.generated: list[int] = []
        """All tokens so far, over all engines that worked on it."""
        self.cached_tokens = 0
        self.arrived_s = time.monotonic()
        self.first_token_s: float | None = None
        self.end: pb.FinishReason = pb.FINISH_NONE
        self._sink = sink
        self._prompt_tokens = 0
        self._max_tokens = 0
        self._stream: TextStream | None = None
        self._unsent_tokens = 0

    def advance(self, to: State) -> None:
        """Raises IllegalTransition."""
        if to not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"request {self.submit.request_id}: {self.state.value} -> {to.value}")
        self.state = to

    @property
    def finished(self) -> bool:
        return self.state is State.FINISHED

    @property
    def tokens_left(self) -> int:
        return self._max_tokens - len(self.generated)

    def begin(self, prompt: TokenIds, max_tokens: int, stream: TextStream, opening: Opening | None = None) -> None:
        """The prompt is known: the answer's opening, or the prompt's echo, if asked for, is the first news."""
        self._prompt_tokens, self._max_tokens, self._stream = len(prompt), max_tokens, stream
        if opening is not None:
            self._sink.opens(self.id, opening)
        if self.submit.echo:
            self._sink.text(self.id, stream.echo(prompt.tolist()), 0)

    def receive(self, ids: list[int], stop_token_last: bool) -> bool:
        """New tokens from an engine. Finishes the request if they complete a stop string, and says so.

        stop_token_last: the last id is the end or stop token that ended the request; it has no text.
        """
        stream = self._stream
        assert stream is not None
        if self.state is State.SUBMITTED:
            self.advance(State.RUNNING)
            self.first_token_s = self.first_token_s or time.monotonic()
        before = stream.tokens
        if stop_token_last:
            text = stream.push(ids[:-1])
            if not stream.stopped:
                stream.count(1)
        else:
            text = stream.push(ids)
        self.generated += ids
        self._unsent_tokens += stream.tokens - before
        if stream.stopped:
            self._end(pb.FINISH_STOP, text)
            return True
        if text:
            self._sink.text(self.id, text, self._unsent_tokens)
            self._unsent_tokens = 0
        return False

    def finish(self, reason: pb.FinishReason) -> None:
        """The last delta, with all text that was held back. Does nothing if the request has finished."""
        if self.finished:
            return
        text = self._stream.finish() if self._stream else ""
        if self._stream and self._stream.stopped:
            reason = pb.FINISH_STOP
        self._end(reason, text)

    def fail(self, error: RequestError) -> None:
        """The last delta is an error; text held back is sent with it. Does nothing if the request has finished."""
        if self.finished:
            return
        self._end(pb.FINISH_ERROR, self._stream.finish() if self._stream else "", error)

    def _end(self, reason: pb.FinishReason, text: str, error: RequestError | None = None) -> None:
        self.advance(State.FINISHED)
        self.end = reason
        usage = pb.Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._stream.tokens if self._stream else 0,
            cached_tokens=self.cached_tokens,
        )
        self._sink.end(
            pb.Delta(
                id=self.id,
                text=text,
                tokens=self._unsent_tokens,
                finish=reason,
                usage=usage,
                error=error.to_proto() if error else None,
            )
        )
