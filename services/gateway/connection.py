"""uvicorn's HTTP connection, with bounds on what a client can do before an application hears of it."""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.gateway.errors import ApiError

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers, or what follows the last chunk of a body; one read more may be in before it is noticed."""


class Surplus(Exception):
    """More came while a request is being answered."""


class Connection(HttpToolsProtocol):
    """A head must come whole within `head_timeout_s` of the connection's begin, or of its first byte on a connection
    kept alive: else 408, or, if nothing came at all, just the end. One that is too long gets 431.

    Requests are not pipelined: what comes while one is answered is dropped, and the connection closed after the
    answer, as HTTP allows; clients send it again. uvicorn's queue of them stops reading, so a client that left
    would not be noticed.
    """

    def __init__(self, *arguments: Any, head_timeout_s: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._unparsed = 0  # bytes since the last of a head or body was seen
        self._surplus = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._surplus or self.transport.is_closing():
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._surplus or self.transport.is_closing():
            return
        if self._unparsed > MAX_HEAD_BYTES:
            self._refuse(431, f"the request's headers are longer than {MAX_HEAD_BYTES} bytes")
        elif not self._busy:
            self._await_head()

    def on_message_begin(self) -> None:
        if self._busy:
            self._surplus = True
            self.cycle.keep_alive = False
            raise Surplus  # ends the parser's work on this connection
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._end_wait()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._surplus:
            self._refuse(400, msg)

    @property
    def _busy(self) -> bool:
        """Whether a request is being read or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_timeout_s, self._head_is_late)

    def _end_wait(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if self._unparsed:
            self._refuse(408, f"the request's headers did not arrive within {self._head_timeout_s:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        if not self._busy:  # else its answer has begun, or will never come: nothing can be said in between
            body = ApiError(status, message).body()
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()
