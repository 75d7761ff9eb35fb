"""Streams and whole answers, shaped as OpenAI's are."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from hostless.v1 import frontend_pb2 as pb
from tests.gateway.conftest import Site, site_of
from tests.gateway.fakes import MODEL, FakeTokenizer, error, last, words

TEXTS = ("Hello", " wor", "ld")


async def test_whole_chat(site: Site) -> None:
    answer = await site.chat()
    body = answer.json
    assert answer.status == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == MODEL
    assert body["created"] > 1_700_000_000
    assert body["system_fingerprint"]
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_whole_completion(site: Site) -> None:
    site.fake.script = words(" upon", finish=pb.FINISH_LENGTH)
    body = (await site.complete()).json
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": " upon", "logprobs": None, "finish_reason": "length"}]


async def test_chat_stream(site: Site) -> None:
    answer = await site.chat(stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = answer.events
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["system_fingerprint"]) for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert choices[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    assert answer.deltas() == "Hello world"
    assert all("usage" not in chunk for chunk in chunks)


async def test_completion_stream(site: Site) -> None:
    answer = await site.complete(stream=True)
    *chunks, done = answer.events
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert answer.deltas() == "Hello world"
    assert answer.finishes() == ["stop"]


async def test_usage_comes_last_and_only_if_asked_for(site: Site) -> None:
    async def script(submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        yield last(pb.FINISH_LENGTH, prompt=300, completion=1, cached=256, text="x", tokens=1)

    site.fake.script = script
    answer = await site.chat(stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = answer.events
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 256}
    assert usage["usage"]["total_tokens"] == 301
    assert all(chunk["usage"] is None for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    quiet = await site.chat(stream=True, stream_options={"include_usage": False})
    assert all("usage" not in chunk for chunk in quiet.events[:-1])


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_times_n(site: Site, stream: bool) -> None:
    async def script(submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        yield pb.Delta(text=f"<{submit.text}:{submit.sampling.seed}>", tokens=1)
        yield last(prompt=10 * len(submit.text), completion=1)

    site.fake.script = script
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = await site.complete(["a", "bb"], n=2, seed=2**64 - 1, **options)
    wanted = [f"<{text}:{seed}>" for text in ("a", "bb") for seed in (2**64 - 1, 0)]
    if stream:
        assert [answer.deltas(index) for index in range(4)] == wanted
        assert [answer.finishes(index) for index in range(4)] == [["stop"]] * 4
        usage = answer.events[-2]["usage"]
    else:
        assert [choice["text"] for choice in answer.json["choices"]] == wanted
        assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2, 3]
        usage = answer.json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10 + 20, 4)


async def test_every_chats_choice_has_its_role(site: Site) -> None:
    answer = await site.chat(stream=True, n=3)
    first = [event["choices"][0] for event in answer.events[:3]]
    assert [(choice["index"], choice["delta"]["role"]) for choice in first] == [(i, "assistant") for i in range(3)]


async def test_any_text_survives(site: Site) -> None:
    texts = ('"\\/', "\n\r\t\x00\x1f", "\u2028\u2029\x85", "日本語", "👩‍👩‍👧", "data: [DONE]\n\n", "</s>")
    site.fake.script = words(*texts)
    assert (await site.chat(stream=True)).deltas() == "".join(texts)
    assert (await site.chat()).json["choices"][0]["message"]["content"] == "".join(texts)


async def test_a_submit_carries_everything(site: Site) -> None:
    await site.complete(
        [1, 2, 3],
        n=2,
        temperature=0.5,
        top_p=0.25,
        top_k=40,
        seed=5,
        max_tokens=9,
        stop=["a", "b"],
        echo=True,
        ignore_eos=True,
        stop_token_ids=[4],
    )
    one, two = site.fake.submits
    assert list(one.token_ids.ids) == [1, 2, 3]
    sampling = one.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 40)
    assert (sampling.seed, two.sampling.seed, sampling.max_tokens) == (5, 6, 9)
    assert (list(one.stop), one.echo, sampling.ignore_eos, list(sampling.stop_token_ids)) == (
        ["a", "b"],
        True,
        True,
        [4],
    )
    assert one.model == MODEL
    assert (two.request_id, one.id == two.id) == (f"{one.request_id}-1", False)


async def test_what_is_not_said_is_absent(site: Site) -> None:
    await site.chat(seed=None, max_tokens=None, stop=None, n=None, temperature=None)
    await site.complete()
    chat, completion = site.fake.submits
    assert chat.chat.messages_json == '[{"role":"user","content":"Hi"}]'
    assert not chat.sampling.HasField("seed")
    assert not chat.sampling.HasField("max_tokens")
    assert not any(map(chat.sampling.HasField, ("temperature", "top_p", "top_k")))  # the model's own
    assert completion.sampling.max_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
async def test_an_early_error_is_a_status(site: Site, stream: bool) -> None:
    async def script(submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        yield error(400, "too long", type="invalid_request_error", code="context_length_exceeded", param="messages")

    site.fake.script = script
    answer = await site.chat(stream=stream)
    assert answer.status == 400
    assert answer.error == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    site.fake.script = words("ok")
    assert (await site.chat()).status == 200


async def test_an_error_of_no_known_status_is_500(site: Site) -> None:
    async def script(submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        yield error(0, "")

    site.fake.script = script
    answer = await site.chat()
    assert (answer.status, answer.error["type"]) == (500, "server_error")


@pytest.mark.parametrize("end", [error(500, "engine lost", code="engine_lost"), pb.Delta(finish=pb.FINISH_CANCELLED)])
async def test_a_late_error_is_an_event(site: Site, end: pb.Delta) -> None:
    async def script(submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        yield pb.Delta(text="Hel", tokens=1)
        await site.fake.hold.wait()
        yield end

    site.fake.script = script
    async with site.open_stream(n=2) as response:
        site.fake.hold.set()
        text = (await response.read()).decode()
    *before, failure, done = text.strip().split("\n\n")
    assert done == "data: [DONE]"
    assert failure.startswith('data: {"error":{"message":')
    assert '"content":"Hel"' in "".join(before)


async def test_headers_do_not_wait_for_a_slow_prefill(fake: FakeTokenizer) -> None:
    fake.script = fake.silent
    async with site_of(fake, headers_after_s=0.01, ping_s=0.01) as site, site.open_stream() as response:
        assert response.status == 200
        text = b""
        while b"\n: ping" not in text:  # the role, then comments that keep the connection open
            text += await response.content.readany()
        assert b'"role":"assistant"' in text
        fake.hold.set()
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_silence_ends_with_an_error(fake: FakeTokenizer) -> None:
    fake.script = fake.silent
    async with site_of(fake, silence_timeout_s=0.05) as site:
        answer = await site.chat()
        assert (answer.status, answer.error["code"]) == (504, "timeout")
        await fake.until(lambda: fake.cancels == [fake.submits[0].id])


async def test_256_streams_at_once(site: Site) -> None:
    answers = await asyncio.gather(*(site.chat(stream=True) for _ in range(256)))
    assert {answer.deltas() for answer in answers} == {"Hello world"}
    assert len({submit.id for submit in site.fake.submits}) == 256
    assert site.fake.ups <= 256
