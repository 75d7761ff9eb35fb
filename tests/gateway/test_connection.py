"""What a client can do to a connection before, between and behind its requests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.gateway.conftest import Site, chat_body, site_of
from tests.gateway.fakes import WAIT_S, FakeTokenizer


@dataclass
class Wire:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def rest(self) -> bytes:
        """Everything until the gateway ends the connection."""
        async with asyncio.timeout(WAIT_S):
            got = b""
            with contextlib.suppress(ConnectionError):  # it was closed with more of ours on the way
                while data := await self.reader.read(65536):
                    got += data
            return got


@asynccontextmanager
async def wire(site: Site) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def chat_bytes(**more: object) -> bytes:
    body = json.dumps(chat_body(**more)).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def error_of(answer: bytes, status: int) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), answer
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
async def test_what_is_not_http(site: Site, junk: bytes) -> None:
    async with wire(site) as client:
        client.send(junk)
        assert "Invalid HTTP" in error_of(await client.rest(), 400)


async def test_a_head_that_never_ends_is_cut_by_size(site: Site) -> None:
    async with wire(site) as client:
        client.send(b"GET /health HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(1000):
                client.send(b"x%d: " % number + b"y" * 1000 + b"\r\n")
                await client.writer.drain()
        answer = await client.rest()
        assert not answer or "longer than 65536 bytes" in error_of(answer, 431)
    assert (await site.get("/health")).status == 200


async def test_trailers_that_never_end_are_cut_by_size(site: Site) -> None:
    async with wire(site) as client:
        client.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(1000):
                client.send(b"x%d: " % number + b"y" * 1000 + b"\r\n")
                await client.writer.drain()
        await client.rest()


@pytest.mark.parametrize("part", [b"", b"GET /health HTTP/1.1\r\nhost:"])
async def test_a_head_that_never_ends_is_cut_by_time(fake: FakeTokenizer, part: bytes) -> None:
    async with site_of(fake, body_timeout_s=0.5) as site, wire(site) as client:
        client.send(part)
        answer = await client.rest()
        assert "did not arrive within 0.5 s" in error_of(answer, 408) if part else not answer


async def test_what_follows_an_early_answer_is_cut_by_time(fake: FakeTokenizer) -> None:
    """A body that nobody reads, a byte now and then, must not keep a connection for ever."""
    async with site_of(fake, body_timeout_s=0.5) as site, wire(site) as client:
        client.send(b"POST /health HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        await client.reader.readuntil(b"\r\n\r\n")
        client.send(b"x")
        await client.rest()


async def test_a_connection_is_kept_between_requests(fake: FakeTokenizer) -> None:
    async with site_of(fake, body_timeout_s=0.5) as site, wire(site) as client:
        for _ in range(2):
            client.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await client.reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.6)  # longer than a head may take: there is none under way


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_second_request_behind_the_first_is_not_answered(site: Site, stream: bool, apart: bool) -> None:
    site.fake.script = site.fake.then_hold
    first, second = chat_bytes(stream=stream), chat_bytes(stream=stream, user="second")
    async with wire(site) as client:
        client.send(first if apart else first + second)
        await site.fake.until(lambda: site.fake.submits)
        if apart:
            client.send(second[:50])
            client.send(second[50:])
        site.fake.hold.set()
        answer = await client.rest()
    assert answer.count(b"HTTP/1.1 200") == 1
    assert answer.count(b"[DONE]") == stream
    assert len(site.fake.submits) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_with_a_second_request_behind_the_first(site: Site, stream: bool) -> None:
    site.fake.script = site.fake.silent
    async with wire(site) as client:
        client.send(chat_bytes(stream=stream) + chat_bytes() * 3)
        await site.fake.until(lambda: site.fake.submits)
    await site.fake.until(lambda: site.fake.cancels)
    await site.until_metric('num_requests_running{model_name="tiny"}', 0)
