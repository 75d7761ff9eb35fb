"""A client's end of the lane."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self, cast

from services.common.lane import frames
from services.common.lane.frames import Frame, Frames, Malformed, Messages, Window

_STREAM = 1


class LaneClosed(Exception):
    """The lane has ended, or has no room now: ask in another way."""


class Lane(asyncio.Protocol):
    """Requests answered in order. `unwanted`, if given, gets the answer to a request whose caller went away."""

    def __init__(self, method: str, unwanted: Callable[[bytes], None] | None) -> None:
        self._method = method.encode()
        self._unwanted = unwanted
        self._transport: asyncio.Transport | None = None
        self._frames, self._messages, self._window = Frames(), Messages(), Window()
        self._asked: deque[tuple[asyncio.Future[bytes], float]] = deque()  # and when
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, host: str, port: int, method: str, unwanted: Callable[[bytes], None] | None) -> Self:
        """Returns once the server has said that it speaks HTTP/2. `method` is `package.Service/Method`. Raises OSError:
        nobody, or somebody else, listens there."""
        loop = asyncio.get_running_loop()
        _, lane = await loop.create_connection(lambda: cls(method, unwanted), host, port)
        try:
            await lane._greeted
        except BaseException:
            lane.close()
            raise
        return lane

    @property
    def closed(self) -> bool:
        return self._transport is None

    @property
    def silent_s(self) -> float:
        """For how long the oldest request has waited; 0: none does."""
        return asyncio.get_running_loop().time() - self._asked[0][1] if self._asked else 0.0

    async def ask(self, request: bytes, timeout_s: float) -> bytes:
        """The answer. Raises LaneClosed, TimeoutError."""
        data = frames.message(_STREAM, request)
        if self._transport is None or len(data) > self._window.open:
            raise LaneClosed
        self._window.sent(len(request) + 5)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._asked.append((answer, loop.time()))
        self._transport.write(data)
        async with asyncio.timeout(timeout_s):
            return await answer

    def close(self) -> None:
        """Idempotent."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        fields = (
            b"\x83\x86"  # :method POST, :scheme http
            + frames.literal(b":path", b"/" + self._method)
            + frames.literal(b":authority", b"lane")
            + frames.literal(b"content-type", b"application/grpc")
            + frames.literal(b"te", b"trailers")
        )
        headers = frames.frame(frames.HEADERS, frames.END_HEADERS, _STREAM, fields)
        self._transport.write(frames.PREFACE + frames.settings() + headers)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self._greeted.done():
            self._greeted.set_exception(ConnectionAbortedError("it does not speak HTTP/2"))
        while self._asked:
            answer, _ = self._asked.popleft()
            if not answer.done():
                answer.set_exception(LaneClosed())

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.take(data):
                self._take(frame)
        except Malformed:
            self.close()

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case frames.DATA:
                for message in self._messages.take(frame):
                    self._answered(message)
                self._write(self._window.taken(frame))
            case frames.SETTINGS if not frame.flags & frames.ACK:
                self._window.apply(frame)
                if not self._greeted.done():
                    self._greeted.set_result(None)
                self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))
            case frames.PING if not frame.flags & frames.ACK:
                self._write(frames.frame(frames.PING, frames.ACK, 0, frame.body))
            case frames.WINDOW_UPDATE:
                self._window.widen(frame)
            case frames.RST_STREAM | frames.GOAWAY:
                self.close()
            case frames.HEADERS if frame.flags & frames.END_STREAM:
                self.close()
            case _:
                return

    def _answered(self, message: bytes) -> None:
        if not self._asked:
            raise Malformed("an answer to nothing")
        answer, _ = self._asked.popleft()
        if not answer.done():
            answer.set_result(message)
        elif self._unwanted is not None:
            self._unwanted(message)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)
