"""HTTP/2 frames (RFC 9113) and gRPC messages in them, as far as one bidirectional stream needs them. Pure."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEFAULT_WINDOW = 65_535
WINDOW = 4 << 20
"""What we let a peer send before it must wait for us, a stream and in all."""
LARGEST_FRAME = 16_384
LARGEST_MESSAGE = 2 << 20

_HEAD = struct.Struct(">HBBBI")  # length u24 as u16 and u8, type, flags, stream
_MESSAGE = struct.Struct(">BI")  # compressed, length
_INITIAL_WINDOW_SIZE = 4


class Malformed(Exception):
    """The peer does not speak what is understood here; the connection ends."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    flags: int
    stream: int
    body: bytes


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body) >> 8, len(body) & 0xFF, kind, flags, stream) + body


def settings() -> bytes:
    """What either side says first: no table of header fields to keep, and a wide window."""
    values = struct.pack(">HIHI", 1, 0, _INITIAL_WINDOW_SIZE, WINDOW)
    return frame(SETTINGS, 0, 0, values) + window_update(0, WINDOW - DEFAULT_WINDOW)


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", more))


def message(stream: int, payload: bytes) -> bytes:
    """A gRPC message as DATA frames."""
    whole = _MESSAGE.pack(0, len(payload)) + payload
    if len(whole) <= LARGEST_FRAME:
        return frame(DATA, 0, stream, whole)
    pieces = (whole[at : at + LARGEST_FRAME] for at in range(0, len(whole), LARGEST_FRAME))
    return b"".join(frame(DATA, 0, stream, piece) for piece in pieces)


def literal(name: bytes, value: bytes) -> bytes:
    """A header field that is in no table, for a block of header fields (RFC 7541, 6.2.2). Both shorter than 127."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Frames:
    """Bytes as they come, into frames. Raises Malformed."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def take(self, data: bytes) -> Iterator[Frame]:
        self._bytes += data
        at = 0
        while len(self._bytes) - at >= 9:
            high, low, kind, flags, stream = _HEAD.unpack_from(self._bytes, at)
            length = high << 8 | low
            if length > LARGEST_FRAME:
                raise Malformed(f"a frame of {length} bytes")
            if len(self._bytes) - at - 9 < length:
                break
            body = bytes(self._bytes[at + 9 : at + 9 + length])
            at += 9 + length
            yield Frame(kind, flags, stream & 0x7FFFFFFF, body)
        del self._bytes[:at]


class Messages:
    """DATA of one stream, into gRPC messages. Raises Malformed."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def take(self, data: Frame) -> Iterator[bytes]:
        body = data.body
        if data.flags & PADDED:
            if not body or body[0] >= len(body):
                raise Malformed("more padding than data")
            body = body[1 : len(body) - body[0]]
        self._bytes += body
        at = 0
        while len(self._bytes) - at >= 5:
            compressed, length = _MESSAGE.unpack_from(self._bytes, at)
            if compressed or length > LARGEST_MESSAGE:
                raise Malformed(f"a message that is compressed, or of {length} bytes")
            if len(self._bytes) - at - 5 < length:
                break
            yield bytes(self._bytes[at + 5 : at + 5 + length])
            at += 5 + length
        del self._bytes[:at]


class Window:
    """How much may be sent still, on a stream and in all; and how much the peer has sent that was not given back."""

    def __init__(self) -> None:
        self.stream = self.whole = DEFAULT_WINDOW
        self.initial = DEFAULT_WINDOW
        self._taken = 0

    @property
    def open(self) -> int:
        return min(self.stream, self.whole)

    def sent(self, size: int) -> None:
        self.stream -= size
        self.whole -= size

    def widen(self, update: Frame) -> None:
        if len(update.body) != 4:
            raise Malformed("a window update of another size")
        (more,) = struct.unpack(">I", update.body)
        if update.stream:
            self.stream += more
        else:
            self.whole += more

    def apply(self, settings: Frame) -> None:
        """The peer's settings; a changed initial window holds for streams that are open too."""
        if len(settings.body) % 6:
            raise Malformed("settings of another size")
        for name, value in struct.iter_unpack(">HI", settings.body):
            if name == _INITIAL_WINDOW_SIZE:
                self.stream += value - self.initial
                self.initial = value

    def taken(self, data: Frame) -> bytes:
        """Frames that give the peer its room back, once half of it is used."""
        self._taken += len(data.body)
        if self._taken < WINDOW // 2:
            return b""
        more, self._taken = self._taken, 0
        return window_update(0, more) + window_update(data.stream, more)
