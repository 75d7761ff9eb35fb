"""One request's life between HTTP and the tokenizer: admitted, submitted, read, closed."""

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace

from services.common import telemetry
from services.gateway.admission import Admission, Ticket
from services.gateway.errors import ApiError
from services.gateway.metrics import Metrics, TokenClock
from services.gateway.openai_schema import Request
from services.gateway.reply import Reply
from services.gateway.responses import Identity
from services.gateway.session import Session
from services.gateway.submit import to_submits

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """Who asks, as the request's headers say it."""

    request_id: str
    tenant: str
    traceparent: str
    arrived: float  # by time.monotonic: uvloop's own clock counts whole milliseconds


class Exchange:
    """Made and closed by Exchanges.open."""

    def __init__(self, shared: "Exchanges", request: Request, caller: Caller) -> None:
        self.request = request
        self.identity = Identity(
            id=f"{'chatcmpl' if request.chat else 'cmpl'}-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=request.model,
            fingerprint=shared.fingerprint,
        )
        self._shared = shared
        self._caller = caller
        self._model = shared.metrics.of(request.model)
        self._clocks = [TokenClock(self._model, caller.arrived) for _ in range(request.choices)]
        self.reply = Reply(self._clocks, only_ends=not request.stream)
        self._ticket: Ticket | None = None
        self._span = telemetry.tracer.start_span(
            "chat.completions" if request.chat else "completions",
            telemetry.context_of({"traceparent": caller.traceparent}) if caller.traceparent else None,
            trace.SpanKind.SERVER,
            {"request_id": caller.request_id, "model": request.model, "choices": request.choices},
            start_time=time.time_ns() - int(1e9 * (time.monotonic() - caller.arrived)),
        )
        self._context = trace.set_span_in_context(self._span)

    async def begin(self) -> None:
        """Waits for its turn, then submits. Raises ApiError (429, 503)."""
        weight = self.request.choices
        asked = time.monotonic()
        self._model.waiting += weight
        try:
            with telemetry.tracer.start_as_current_span("queue", self._context):
                self._ticket = await self._shared.admission.acquire(weight)
        finally:
            self._model.waiting -= weight
        self._model.running += weight
        self._model.queue.observe(time.monotonic() - asked)
        caller = self._caller
        header = telemetry.traceparent(self._context)
        self._shared.session.submit(self.reply, to_submits(self.request, caller.request_id, header, caller.tenant))
        self.reply.watch_silence(self._shared.silence_timeout_s)

    async def first_news(self, wait_s: float) -> None:
        """Returns when there is something to send, or after `wait_s` seconds; raises ApiError if it is an error."""
        try:
            async with asyncio.timeout(wait_s):
                await self.reply.wait()
        except TimeoutError:
            return
        if error := self.reply.error:
            raise error

    async def texts(self) -> list[str]:
        """The whole text of each choice. Raises ApiError if one fails."""
        await self.reply.ended()
        if error := self.reply.error:
            raise error
        return [choice.take() for choice in self.reply.choices]

    def close(self) -> None:
        """Cancels what still runs, gives the place back, and accounts for the request."""
        self._shared.session.forget(self.reply)
        self.reply.close()
        if self._ticket is not None:
            self._shared.admission.release(self._ticket)
            self._model.running -= self.request.choices
            self._account()
        self._shared.metrics.tidy(self.request.model)
        self._log()
        self._span.end()

    def _account(self) -> None:
        took_s = time.monotonic() - self._caller.arrived
        for choice, clock in zip(self.reply.choices, self._clocks, strict=True):
            if choice.error is not None and choice.error.status < 500:
                continue  # the client's mistake: no request of the model's
            self._model.finished[choice.finish or "abort"] += 1
            if choice.finish not in ("stop", "length"):
                continue
            self._model.request.observe(took_s)
            clock.end()
            if (usage := choice.usage) is not None:
                self._model.prompt_tokens.observe(usage.prompt_tokens)
                self._model.generation_tokens.observe(usage.completion_tokens)
                self._model.cached += usage.cached_tokens

    def _log(self) -> None:
        choices = self.reply.choices
        error = self.reply.error
        first = min((clock.first for clock in self._clocks if clock.first), default=0.0)
        fields: dict[str, str | float | None] = {
            "completion": self.identity.id,
            "model": self.request.model,
            "tenant": self._caller.tenant,
            "stream": self.request.stream,
            "finish": ",".join(sorted({choice.finish or "abort" for choice in choices})),
            "tokens": sum(clock.tokens_seen for clock in self._clocks),
            "first_token_s": round(first - self._caller.arrived, 6) if first else None,
            "took_s": round(time.monotonic() - self._caller.arrived, 4),
        }
        self._span.set_attributes({key: value for key, value in fields.items() if value is not None})
        if error is not None:
            fields["error"] = error.message
            self._span.set_status(trace.StatusCode.ERROR, error.message)
        log.info("request", extra=fields)


class Exchanges:
    """All exchanges under way, and what they share."""

    def __init__(
        self, session: Session, admission: Admission, metrics: Metrics, silence_timeout_s: float, version: str
    ) -> None:
        self.session = session
        self.admission = admission
        self.metrics = metrics
        self.silence_timeout_s = silence_timeout_s
        self.fingerprint = f"fp_hostless_{version}"
        self.idle = asyncio.Event()  # set while no exchange is open
        self.idle.set()
        self.draining = False  # no new exchanges; /ready says so
        self._open: set[Exchange] = set()

    @contextmanager
    def open(self, request: Request, caller: Caller) -> Iterator[Exchange]:
        """An exchange that is closed at the block's end, however that comes."""
        exchange = Exchange(self, request, caller)
        self._open.add(exchange)
        self.idle.clear()
        try:
            yield exchange
        finally:
            self._open.discard(exchange)
            exchange.close()
            if not self._open:
                self.idle.set()

    def fail(self, error: ApiError) -> None:
        """Ends all of them: streams that have begun by an error event, the others by the error's status."""
        self.admission.refuse_waiting(error)
        for exchange in list(self._open):
            exchange.reply.fail(error)
