"""The session: coalescing, loss and return of the tokenizer."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from hostless.v1 import frontend_pb2 as pb
from services.cli.mesh.ports import free_ports
from services.gateway.errors import ApiError
from services.gateway.metrics import ModelMetrics, TokenClock
from services.gateway.reply import Reply
from services.gateway.session import Session
from services.tokenizer import client as client_module
from services.tokenizer.client import FrontendClient
from tests.gateway.conftest import Site, site_of
from tests.gateway.fakes import FakeTokenizer, words
from tests.waiting import until


@pytest.fixture
async def session(fake: FakeTokenizer) -> AsyncIterator[Session]:
    client = FrontendClient(fake.address)
    session = Session(client)
    task = asyncio.create_task(client.run())
    await fake.until(lambda: fake.sessions)
    await until(lambda: session.connected)
    yield session
    task.cancel()
    await asyncio.wait([task])


def reply_of(choices: int = 1) -> Reply:
    return Reply([TokenClock(ModelMetrics(), 0.0) for _ in range(choices)])


async def test_requests_of_one_turn_travel_together(session: Session, fake: FakeTokenizer) -> None:
    fake.script = fake.silent
    replies = [reply_of() for _ in range(100)]
    for reply in replies:
        session.submit(reply, [pb.Submit()])
    await fake.until(lambda: len(fake.submits) == 100)
    assert fake.ups == 1
    for reply in replies:
        session.forget(reply)
        session.forget(reply)
    await fake.until(lambda: len(fake.cancels) == 100)
    assert fake.ups == 2


async def test_what_was_not_sent_is_not_cancelled(session: Session, fake: FakeTokenizer) -> None:
    gone, kept = reply_of(), reply_of()
    session.submit(gone, [pb.Submit(text="gone")])
    session.forget(gone)
    session.submit(kept, [pb.Submit(text="kept")])
    await kept.ended()
    assert [submit.text for submit in fake.submits] == ["kept"]
    assert fake.cancels == []


async def test_messages_are_bounded(session: Session, fake: FakeTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MESSAGE_BYTES", 1000)
    reply = reply_of(10)
    session.submit(reply, [pb.Submit(text="x" * 300) for _ in range(10)])
    await reply.ended()
    assert len(fake.submits) == 10
    assert fake.ups == 4
    assert [submit.id for submit in fake.submits] == sorted(submit.id for submit in fake.submits)


async def test_nothing_is_submitted_without_a_session() -> None:
    session = Session(FrontendClient("127.0.0.1:1"))
    with pytest.raises(ApiError, match=r"127\.0\.0\.1:1") as failure:
        session.submit(reply_of(), [pb.Submit()])
    assert failure.value.status == 503
    with pytest.raises(ApiError, match="does not answer") as failure:
        await session.describe()
    assert failure.value.status == 503


async def test_a_lost_tokenizer_fails_its_requests_and_comes_back(site: Site) -> None:
    site.fake.script = site.fake.then_hold
    whole = asyncio.create_task(site.chat())
    async with site.open_stream() as response:
        await response.content.readuntil(b"Hello")
        await site.fake.until(lambda: len(site.fake.submits) == 2)
        site.fake.end_sessions()
        rest = (await response.read()).decode()
    assert '"code":"tokenizer_lost"' in rest
    assert rest.endswith("data: [DONE]\n\n")
    answer = await whole
    assert (answer.status, answer.error["code"]) == (503, "tokenizer_lost")
    assert "Retry-After" in answer.headers
    await site.fake.until(lambda: site.fake.sessions == 2)
    await site.until_ready()
    site.fake.script = words("back")
    assert (await site.chat()).status == 200


async def test_a_tokenizer_that_starts_later() -> None:
    fake = FakeTokenizer()
    with free_ports(1, "127.0.0.1") as [port]:
        fake.address = f"127.0.0.1:{port}"
        async with asyncio.timeout(60), site_of(fake, ready=False) as site:
            assert (await site.get("/ready")).status == 503
            assert (await site.get("/health")).status == 200
            assert (await site.chat()).status == 503
            async with fake.serve(fake.address):
                await site.until_ready()
                assert (await site.chat()).status == 200
