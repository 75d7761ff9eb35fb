"""A client that leaves: the cancel is at the tokenizer at once, whatever the request was doing."""

import asyncio
import contextlib
import json

import pytest

from tests.gateway.conftest import Site, chat_body, site_of
from tests.gateway.fakes import FakeTokenizer, words


async def leave(site: Site, stream: bool) -> None:
    """Sends a chat, waits until the tokenizer has it, and closes the connection."""
    task = asyncio.create_task(site.chat(stream=stream))
    await site.fake.until(lambda: site.fake.submits)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def is_idle(site: Site) -> None:
    fake = site.fake
    await fake.until(lambda: sorted(fake.cancels) == sorted(submit.id for submit in fake.submits))
    await site.until_metric('num_requests_running{model_name="tiny"}', 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_first_token(site: Site, stream: bool) -> None:
    site.fake.script = site.fake.silent
    await leave(site, stream)
    await site.fake.until(lambda: site.fake.cancels)
    site.fake.script = words("ok")
    assert (await site.chat()).status == 200


async def test_after_the_headers_and_before_the_first_token(fake: FakeTokenizer) -> None:
    fake.script = fake.silent
    async with site_of(fake, headers_after_s=0.01) as site:
        async with site.open_stream():
            pass
        await fake.until(lambda: fake.cancels)


async def test_in_the_middle_of_a_stream(site: Site) -> None:
    site.fake.script = site.fake.then_hold
    async with site.open_stream(n=3) as response:
        await response.content.readuntil(b"Hello")
    await is_idle(site)
    assert len(site.fake.cancels) == 3
    assert (await site.metrics())['request_success_total{finished_reason="abort",model_name="tiny"}'] == 3


async def test_in_the_middle_of_an_answer_that_is_not_streamed(site: Site) -> None:
    site.fake.script = site.fake.then_hold
    await leave(site, stream=False)
    await is_idle(site)


async def test_in_the_queue(fake: FakeTokenizer) -> None:
    """It loses its place, and the tokenizer never hears of it."""
    fake.script = fake.silent
    async with site_of(fake, max_running=1, max_choices=1) as site:
        first = asyncio.create_task(site.chat())
        await fake.until(lambda: fake.submits)
        second = asyncio.create_task(site.chat())
        await site.until_metric('num_requests_waiting{model_name="tiny"}', 1)
        second.cancel()
        await site.until_metric('num_requests_waiting{model_name="tiny"}', 0)
        fake.hold.set()
        assert (await first).status == 200
        assert len(fake.submits) == 1
        with contextlib.suppress(asyncio.CancelledError):
            await second


async def test_in_the_middle_of_the_body(site: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
    assert (await site.chat()).status == 200


async def test_a_client_that_reads_nothing(fake: FakeTokenizer) -> None:
    """Its text is merged while it doesn't read; a ping that can't be sent ends it."""
    fake.script = words(*["x" * 65536] * 400)
    async with site_of(fake, ping_s=0.05, send_timeout_s=0.05) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port, limit=1)
        await send_chat(writer)
        # It never reads, so flow control fills the sockets' buffers; then a ping can't be sent either.
        await site.until_metric('request_success_total{finished_reason="stop",model_name="tiny"}', 1)
        await site.until_metric('num_requests_running{model_name="tiny"}', 0)
        assert (await site.chat()).status == 200
        writer.transport.abort()
        del reader


async def test_a_slow_client_gets_everything_in_few_pieces(site: Site) -> None:
    """Deltas that come while the client doesn't read are merged into one event."""
    count = 3000
    site.fake.script = words(*["x" * 8192] * count)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port, limit=1)
    await send_chat(writer)
    await site.until_metric('generation_tokens_total{model_name="tiny"}', count)
    text = b""
    while b"[DONE]" not in text[-100:]:
        text += await reader.read(1 << 20)
    assert text.count(b"x" * 100) > 0
    assert text.count(b"x") >= 8192 * count
    assert text.count(b'"content":') < count / 2
    writer.close()
    await writer.wait_closed()


async def send_chat(writer: asyncio.StreamWriter) -> None:
    body = json.dumps(chat_body(stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
