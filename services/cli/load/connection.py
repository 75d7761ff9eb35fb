"""A keep-alive HTTP/1.1 connection that hands on body bytes with almost no work of its own: on a small machine the
client shares the cores with the server that it measures. An event costs a third of what a full HTTP client takes."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

OnBody = Callable[[bytes], None]


class ConnectionFailed(Exception):
    """The connection could not be made, broke, spoke something else than HTTP, or was silent for too long."""


class _Connection(asyncio.Protocol):
    """One request at a time; reusable when post() has returned and `open` still holds."""

    def __init__(self, silence_s: float) -> None:
        self.open = True
        self.answered = False  # a byte of the present reply has come
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._heard = 0.0
        self._done: asyncio.Future[None] | None = None

    async def post(self, request: bytes, on_body: OnBody) -> int:
        """Sends a whole request; its status once all of the reply has come and on_body() has had it.

        Raises ConnectionFailed; the connection is closed then.
        """
        self.answered = False
        self.on_body = on_body  # the parser calls it
        self._parser = httptools.HttpResponseParser(self)
        self._done = self._loop.create_future()
        self._heard = self._loop.time()
        self._transport.write(request)
        self._watch(self._done)
        try:
            await self._done
            if not self._parser.should_keep_alive():
                self.close()
            return int(self._parser.get_status_code())
        finally:
            self._timer.cancel()
            if not self._done.done() or self._done.cancelled() or self._done.exception():
                self.close()

    def close(self) -> None:
        self.open = False
        self._transport.abort()

    def _watch(self, done: "asyncio.Future[None]") -> None:
        """Fails the request after a silence. Looks again when that could be, so that an event costs no timer."""
        left = self._heard + self._silence_s - self._loop.time()
        if left <= 0:
            self._fail(done, f"silent for {self._silence_s:g} s")
        else:
            self._timer = self._loop.call_later(left, self._watch, done)

    @staticmethod
    def _fail(done: "asyncio.Future[None] | None", why: str) -> None:
        if done and not done.done():
            done.set_exception(ConnectionFailed(why))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self.answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(self._done, f"not HTTP: {error}")

    def on_message_complete(self) -> None:
        if self._done and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._fail(self._done, f"the connection broke: {error}" if error else "the server closed the connection")


@dataclass(frozen=True)
class Target:
    """Where requests go."""

    url: str  # of the endpoint, whole
    api_key: str = ""
    silence_s: float = 300.0


class Connections:
    """Connections to one endpoint, made as needed and used again."""

    def __init__(self, target: Target) -> None:
        parts = urlsplit(target.url)
        secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if secure else 80)
        self._ssl = ssl.create_default_context() if secure else None
        self._silence_s = target.silence_s
        self._idle: list[_Connection] = []
        head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        if target.api_key:
            head += f"Authorization: Bearer {target.api_key}\r\n"
        self._head = head.encode()

    async def post(self, body: bytes, on_body: OnBody) -> int:
        """The reply's status. Raises ConnectionFailed."""
        request = b"%sContent-Length: %d\r\n\r\n%s" % (self._head, len(body), body)
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                try:
                    return await self._post(connection, request, on_body)
                except ConnectionFailed:
                    if connection.answered:
                        raise
                    # The server closed an idle connection just then: as if it had never been.
        return await self._post(await self._connect(), request, on_body)

    async def _post(self, connection: _Connection, request: bytes, on_body: OnBody) -> int:
        status = await connection.post(request, on_body)
        if connection.open:
            self._idle.append(connection)
        return status

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._silence_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._silence_s), self._host, self._port, ssl=self._ssl
                )
        except (OSError, TimeoutError) as error:
            raise ConnectionFailed(f"no connection to {self._host}:{self._port}: {error or 'timed out'}") from None
        return connection

    def close(self) -> None:
        """Closes the idle ones; none is under way any more."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
