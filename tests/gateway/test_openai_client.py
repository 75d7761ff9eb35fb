"""The official client, as users have it: sync and async, streams and not."""

import asyncio
from typing import Any

import openai
import pytest

from hostless.v1 import frontend_pb2 as pb
from tests.gateway.conftest import Site, site_of
from tests.gateway.fakes import MODEL, FakeTokenizer, error, last

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]


def use_sync(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
        assert [choice.message.content for choice in whole.choices] == ["Hello world"] * 2
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        text = client.completions.create(model=MODEL, prompt=["a", "b"])
        assert [choice.text for choice in text.choices] == ["Hello world"] * 2
        with client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world"
        assert chunks[-1].usage is not None
        with client.completions.create(model=MODEL, prompt="a", stream=True) as pieces:
            assert "".join(piece.choices[0].text for piece in pieces) == "Hello world"
        with pytest.raises(openai.BadRequestError) as failure:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
        assert failure.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


async def test_sync(site: Site) -> None:
    await asyncio.to_thread(use_sync, site.url)


async def test_async(site: Site) -> None:
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=5)
        assert whole.choices[0].finish_reason == "stop"
        assert site.fake.submits[-1].sampling.max_tokens == 5

        async def one() -> str:
            stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert await asyncio.gather(*(one() for _ in range(20))) == ["Hello world"] * 20


async def test_an_error_in_the_stream_is_raised(site: Site) -> None:
    async def script(submit: pb.Submit) -> Any:
        yield pb.Delta(text="Hel", tokens=1)
        await site.fake.hold.wait()
        yield error(503, "the engine was lost", code="engine_lost")

    site.fake.script = script
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:

        async def read() -> None:
            async for _ in await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
                site.fake.hold.set()

        with pytest.raises(openai.APIError, match="the engine was lost"):
            await read()


async def test_closing_a_stream_cancels(site: Site) -> None:
    site.fake.script = site.fake.then_hold
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await site.fake.until(lambda: site.fake.cancels)


async def test_a_refused_request_is_tried_again_after_a_while(fake: FakeTokenizer) -> None:
    """The client's own retries get through once there is room: Retry-After is what it understands."""

    async def first_is_slow(submit: pb.Submit) -> Any:
        if len(fake.submits) == 1:
            await fake.hold.wait()
        yield last(text="ok", tokens=1, completion=1)

    fake.script = first_is_slow
    async with site_of(fake, max_running=1, max_choices=1, max_queue=0) as site:
        running = asyncio.create_task(site.chat())
        await fake.until(lambda: fake.submits)
        async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=2) as client:
            asking = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=MESSAGES))
            await site.until_metric('request_refused_total{code="rate_limit_exceeded",status="429"}', 1)
            fake.hold.set()
            assert (await running).status == 200
            assert (await asking).choices[0].message.content == "ok"
