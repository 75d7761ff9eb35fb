"""The server's end of a lane against peers that break the protocol, read nothing, or say nothing."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hostless.v1 import kvstore_pb2 as pb
from services.common.lane import frames, server, shortcut
from services.common.lane.client import Lane

BEGUN = frames.PREFACE + frames.settings() + frames.frame(frames.HEADERS, frames.END_HEADERS, 1)


def answer(request: bytes) -> bytes:
    return bytes(pb.LookupReply(hit=len(pb.LookupRequest.FromString(request).keys)).SerializeToString())


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Also sees to it that nothing is raised but what ends a connection."""
    uncaught: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: uncaught.append(context))
    async with server.serve("127.0.0.1", 0, answer) as port:
        yield port
        lane = await Lane.connect("127.0.0.1", port, "a.B/C", None)
        assert (
            pb.LookupReply.FromString(await lane.ask(pb.LookupRequest(keys=b"12345").SerializeToString(), 20)).hit == 5
        )
        lane.close()
    assert not uncaught


async def ended(port: int, data: bytes) -> None:
    """Returns once the server has cut a connection on which it got `data`."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(1 << 16):
                pass
        writer.close()


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r",
        BEGUN + frames.frame(frames.SETTINGS, 0, 0, b"12345"),
        BEGUN + frames.frame(frames.WINDOW_UPDATE, 0, 0, b"12345"),
        BEGUN + frames.message(1, b"\xff\xff\xff"),
        BEGUN + frames.frame(frames.DATA, 0, 1, b"\1\0\0\0\1x"),
        BEGUN + frames.frame(frames.DATA, 0, 1, b"\0\xff\xff\xff\xff"),
        BEGUN + frames.frame(frames.DATA, frames.PADDED, 1, b"\x09x"),
        BEGUN + b"\x00\x40\x01\x00\x00\x00\x00\x00\x01",
        frames.PREFACE + frames.frame(frames.HEADERS, frames.END_HEADERS, 0),
    ],
)
async def test_what_breaks_the_protocol_is_cut(port: int, noise: bytes) -> None:
    await ended(port, noise)


async def test_anything_at_all(port: int) -> None:
    dice = random.Random(1)
    for _ in range(300):
        data = bytearray(BEGUN)
        for _ in range(dice.randrange(1, 6)):
            body = dice.randbytes(dice.choice([0, 1, 4, 5, 6, 12, 100, 16_384]))
            data += frames.frame(dice.randrange(12), dice.randrange(256), dice.choice([0, 1, 3]), body)
        for _ in range(dice.choice([0, 5])):
            data[dice.randrange(len(data))] = dice.randrange(256)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(data))
        writer.transport.abort() if dice.random() < 0.5 else writer.close()


@pytest.mark.parametrize("asked", [frames.frame(frames.PING, 0, 0, bytes(8)), frames.message(1, bytes(4))])
async def test_a_peer_that_reads_nothing_is_cut_before_it_costs_memory(
    asked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_WAITING", 1 << 16)
    loop = asyncio.get_running_loop()
    wide = frames.window_update(0, 0x7FFF0000 - 65_535) + frames.window_update(1, 0x7FFF0000 - 65_535)
    async with server.serve("127.0.0.1", 0, lambda request: bytes(16_000)) as port:
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.setblocking(False)
            await loop.sock_connect(peer, ("127.0.0.1", port))
            await loop.sock_sendall(peer, BEGUN + wide)
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                await send_until_cut(peer, asked * 1000)


async def send_until_cut(peer: socket.socket, data: bytes) -> None:
    async with asyncio.timeout(30):
        while True:
            await asyncio.get_running_loop().sock_sendall(peer, data)


async def test_a_peer_that_says_nothing_is_cut(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "OPEN_S", 0.05)
    for said in (b"", frames.PREFACE[:5], frames.PREFACE + frames.settings()):
        await ended(port, said)
    monkeypatch.setattr(server, "OPEN_S", 10.0)


async def test_so_many_peers_and_no_more(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_PEERS", 3)
    lanes = [await Lane.connect("127.0.0.1", port, "a.B/C", None) for _ in range(3)]
    with pytest.raises(OSError, match="HTTP/2"):
        await Lane.connect("127.0.0.1", port, "a.B/C", None)
    lanes[0].close()
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                lanes.append(await Lane.connect("127.0.0.1", port, "a.B/C", None))
                break
    for lane in lanes:
        lane.close()
    monkeypatch.setattr(server, "MOST_PEERS", 1024)


async def test_somebody_else_on_the_port_is_no_lane() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n" * 1000)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
        with pytest.raises(OSError, match="HTTP/2"):
            async with asyncio.timeout(60):
                await Lane.connect("127.0.0.1", other.sockets[0].getsockname()[1], "a.B/C", None)


async def test_a_lane_is_left_once_it_has_been_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frames.settings())
        await reader.read(-1)
        writer.close()
        await writer.wait_closed()
        gone.set()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        way = shortcut.Shortcut(f"127.0.0.1:{port}", "a.B/C")
        way.offer(port)
        assert way.joining
        await way.joining
        with pytest.raises(TimeoutError):
            await way.ask(b"", 0.01)
        assert way.lane is not None
        monkeypatch.setattr(shortcut, "SILENT_S", 0.0)
        with pytest.raises(TimeoutError):
            await way.ask(b"", 0.01)
        assert way.lane is None
        await way.close()
        async with asyncio.timeout(60):
            await gone.wait()
