"""POST /v1/chat/completions and /v1/completions: from the HTTP request to the response's last byte."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from sse_starlette.sse import SendTimeoutError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.body import ClientGone, parse_json, read_body
from services.gateway.exchange import Caller, Exchange, Exchanges
from services.gateway.long_bodies import LongBodies
from services.gateway.openai_schema import Request
from services.gateway.responses import DONE, Chunks, Texts, error_event, whole_body
from services.gateway.settings import GatewaySettings
from services.gateway.token_stream import TokenStream

log = logging.getLogger(__name__)

T = TypeVar("T")

Read = Callable[[dict[str, Any], int], Request]


class Completions:
    """An ASGI application for one of the two endpoints; `read` checks its bodies."""

    def __init__(self, exchanges: Exchanges, settings: GatewaySettings, long_bodies: LongBodies, read: Read) -> None:
        self._exchanges = exchanges
        self._long_bodies = long_bodies
        self._settings = settings
        self._read = read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = time.monotonic()
        settings, headers = self._settings, Headers(scope=scope)
        try:
            body = await read_body(headers, receive, settings.max_body_bytes, settings.body_timeout_s)
            request = await self._long_bodies.read(body, self._request)
            caller = Caller(
                request_id=scope["hostless.request_id"],
                tenant=scope["hostless.tenant"],
                traceparent=headers.get("traceparent", ""),
                arrived=arrived,
            )
            with self._exchanges.open(request, caller) as exchange:
                respond = self._stream if request.stream else self._whole
                await respond(exchange, scope, receive, send)
        except ClientGone:
            log.debug("the client left before it was answered")

    def _request(self, body: bytes) -> Request:
        return self._read(parse_json(body), self._settings.max_choices)

    async def _whole(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        async def texts() -> list[str]:
            await exchange.begin()
            return await exchange.texts()

        content = await unless_gone(receive, texts())
        body = whole_body(exchange.identity, exchange.request, exchange.reply.choices, content)
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _stream(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        async def first_news() -> None:
            await exchange.begin()
            await exchange.first_news(self._settings.headers_after_s)

        await unless_gone(receive, first_news())
        response = TokenStream(events(exchange), self._settings.ping_s, self._settings.send_timeout_s)
        try:
            await response(scope, receive, send)
        except SendTimeoutError:
            log.warning("a client reads nothing; its stream is cut")


async def events(exchange: Exchange) -> AsyncGenerator[bytes, None]:
    """The stream's events, ready to be written: all that is new at a time in one piece."""
    reply, chunks = exchange.reply, Chunks(exchange.identity, exchange.request)
    texts = Texts(chunks, exchange.request)
    running = len(reply.choices)
    ready = [chunks.role(choice.index) for choice in reply.choices] if exchange.request.chat else []
    while running:
        for choice in reply.take_news():
            ready += texts.events(choice)
            if choice.error is not None:
                yield b"".join((*ready, error_event(choice.error), DONE))
                return
            if choice.finish is not None:
                ready.append(chunks.finish(choice.index, texts.reason(choice.index, choice.finish)))
                running -= 1
        if not running:
            break
        if ready:
            yield b"".join(ready)
            ready.clear()
        await reply.wait()
    if exchange.request.include_usage:
        ready.append(chunks.usage(reply.choices))
    yield b"".join((*ready, DONE))


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. If the client disconnects first, `work` is cancelled and ClientGone raised."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
