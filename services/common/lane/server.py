"""A service's end of a lane: one connection a client, one stream a connection.

What a peer may do wrong is bounded: by the size of frames, messages and unread answers, by the number of connections,
by a deadline for the stream's beginning, and by TCP's keepalive for a peer that silently went.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from services.common.lane import frames
from services.common.lane.frames import Frame, Frames, Malformed, Messages, Window
from services.common.rpc import PortTaken

log = logging.getLogger(__name__)

Answer = Callable[[bytes], bytes]
"""A serialised request into a serialised reply, at once. A DecodeError ends the connection."""

_BEGINNING = b"\x88" + b"\x0f\x10\x10application/grpc"  # :status 200, content-type, by their places in the static table
_OK = frames.literal(b"grpc-status", b"0")
_ANOTHER_STREAM = b"\0\0\0\x07"  # REFUSED_STREAM
MOST_WAITING = 1 << 20
"""Bytes of answers that a client which reads none may leave waiting: for its window, and for its network."""
MOST_PEERS = 1024
OPEN_S = 10.0
"""A connection on which no stream has begun for so long is cut."""
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Seconds and tries, so that a peer without power is noticed after a minute."""


class _Connection(asyncio.Protocol):
    def __init__(self, answer: Answer, peers: "set[_Connection]") -> None:
        self._answer, self._peers = answer, peers
        self._transport: asyncio.Transport | None = None
        self._frames, self._preface = Frames(), bytearray()
        self._stream = 0
        self._messages, self._window = Messages(), Window()
        self._waiting: list[bytes] = []
        self._opening: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        if len(self._peers) >= MOST_PEERS:
            self._cut(f"{MOST_PEERS} clients have one already")
            return
        self._peers.add(self)
        _keep_alive(transport.get_extra_info("socket"))
        self._opening = asyncio.get_running_loop().call_later(OPEN_S, self._cut, f"no stream within {OPEN_S:.0f} s")
        self._transport.write(frames.settings())

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._peers.discard(self)
        self._stop_opening()

    def close(self) -> None:
        """At once where the peer doesn't read what it was sent: that would take for ever."""
        if self._transport is not None:
            if self._transport.get_write_buffer_size():
                self._transport.abort()
            else:
                self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            if len(self._preface) < len(frames.PREFACE):
                data = self._begin(data)
            for frame in self._frames.take(data):
                self._take(frame)
        except (Malformed, DecodeError) as error:
            self._cut(str(error))

    def _cut(self, reason: str) -> None:
        log.warning("a lane is cut", extra={"reason": reason})
        self.close()

    def _stop_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    def _begin(self, data: bytes) -> bytes:
        """Takes the preface; returns what is behind it."""
        missing = len(frames.PREFACE) - len(self._preface)
        self._preface += data[:missing]
        if not frames.PREFACE.startswith(self._preface):
            raise Malformed("no HTTP/2")
        return data[missing:]

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case frames.DATA if frame.stream == self._stream != 0:
                self._take_data(frame)
            case frames.HEADERS:
                self._open(frame)
            case frames.SETTINGS if not frame.flags & frames.ACK:
                self._window.apply(frame)
                self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))
            case frames.PING if not frame.flags & frames.ACK:
                self._write(frames.frame(frames.PING, frames.ACK, 0, frame.body))
            case frames.WINDOW_UPDATE if frame.stream in (0, self._stream):
                self._window.widen(frame)
                self._flush()
            case frames.RST_STREAM if frame.stream == self._stream:
                self._stream = 0
            case _:
                return  # what else there is, or may come to be, asks for nothing

    def _open(self, frame: Frame) -> None:
        """Whatever its fields say: there is one method here."""
        if not frame.stream:
            raise Malformed("a stream of number 0")
        if self._stream:
            self._write(frames.frame(frames.RST_STREAM, 0, frame.stream, _ANOTHER_STREAM))
            return
        self._stop_opening()
        self._stream, self._messages = frame.stream, Messages()
        self._window.stream = self._window.initial
        self._write(frames.frame(frames.HEADERS, frames.END_HEADERS, frame.stream, _BEGINNING))
        if frame.flags & frames.END_STREAM:
            self._end()

    def _take_data(self, frame: Frame) -> None:
        for request in self._messages.take(frame):
            self._waiting.append(frames.message(self._stream, self._answer(request)))
        self._write(self._window.taken(frame))
        self._flush()
        if sum(map(len, self._waiting)) > MOST_WAITING:
            raise Malformed("a client that takes no answers")
        if frame.flags & frames.END_STREAM:
            self._end()

    def _end(self) -> None:
        flags = frames.END_HEADERS | frames.END_STREAM
        self._write(frames.frame(frames.HEADERS, flags, self._stream, _OK))
        self._stream = 0

    def _flush(self) -> None:
        while self._waiting and len(self._waiting[0]) - 9 <= self._window.open:
            self._window.sent(len(self._waiting[0]) - 9)
            self._write(self._waiting.pop(0))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > MOST_WAITING:
                raise Malformed("a client that reads nothing")


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


@asynccontextmanager
async def serve(host: str, port: int, answer: Answer) -> AsyncIterator[int]:
    """Serves `answer` until the block ends; yields the port, of which 0 picks a free one. Raises PortTaken."""
    peers: set[_Connection] = set()
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(lambda: _Connection(answer, peers), host.strip("[]"), port)
    except OSError as error:
        raise PortTaken(f"lane-port: can't listen on {host}:{port}: {error.strerror}") from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for peer in list(peers):
            peer.close()
