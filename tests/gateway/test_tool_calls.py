"""Calls of tools in answers: streamed, not streamed, and by the official client, over a real tokenizer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from hostless.v1 import frontend_pb2 as pb
from services.fabric.ring import Finish
from tests.gateway.conftest import Answer, Site, site_of
from tests.gateway.fakes import FakeTokenizer, Script, error, last
from tests.gateway.test_tools import NAMED, call, history, tool
from tests.tokenizer import tool_templates as templates
from tests.tokenizer.conftest import CHATML, toy_model
from tests.tokenizer.service.rig import MODEL as TOY
from tests.tokenizer.service.rig import Rig, make_rig

CALL = '<tool_call>\n{"name": "get", "arguments": {"a": "é"}}\n</tool_call>'
SECOND = '\n<tool_call>\n{"name": "put", "arguments": {}}\n</tool_call>'
CUT, BEGUN = CALL.index("é"), CALL.index(' {"a"')
GET, PUT = ("get", '{"a": "é"}'), ("put", "{}")
TOOLS = {"tools": [tool(), tool("put")]}


def says(*texts: str, finish: int = pb.FINISH_STOP, opening: str = "") -> Script:
    """A token a text."""

    async def script(submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        yield pb.Delta(tool_format=pb.TOOL_FORMAT_HERMES, text=opening)
        for text in texts:
            yield pb.Delta(text=text, tokens=1)
        yield last(finish, completion=len(texts))

    return script


def streamed(answer: Answer, index: int = 0) -> dict[str, Any]:
    """The message that a choice's deltas add up to; a call's first delta has its id, type and name."""
    message: dict[str, Any] = {"content": "", "calls": []}
    for event in answer.events[:-1]:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            for one in delta.get("tool_calls", ()):
                if one["index"] == len(message["calls"]):
                    assert one["type"] == "function"
                    assert one["id"].startswith("call_")
                    assert one["function"]["arguments"] == ""
                    message["calls"].append((one["function"]["name"], ""))
                else:
                    assert one["index"] == len(message["calls"]) - 1
                    assert set(one) == {"index", "function"}
                    name, arguments = message["calls"][-1]
                    message["calls"][-1] = name, arguments + one["function"]["arguments"]
    return {**message, "finish": answer.finishes(index)}


def whole(answer: Answer, index: int = 0) -> dict[str, Any]:
    choice = answer.json["choices"][index]
    message = choice["message"]
    assert message["role"] == "assistant"
    calls = message.get("tool_calls", [])
    assert len({one["id"] for one in calls}) == len(calls)
    assert (message["content"] is None) <= bool(calls)
    pairs = [(one["function"]["name"], one["function"]["arguments"]) for one in calls]
    return {"content": message["content"] or "", "calls": pairs, "finish": [choice["finish_reason"]]}


@pytest.mark.parametrize(
    ("script", "asked", "content", "calls", "finish"),
    [
        (says("Well.\n", CALL), {}, "Well.", [GET], "tool_calls"),
        (says(*CALL, *SECOND), {}, "", [GET, PUT], "tool_calls"),
        (says(CALL + SECOND), {"parallel_tool_calls": False}, "", [GET], "tool_calls"),
        (says("a < b", " <tool"), {}, "a < b <tool", [], "stop"),
        (says("<tool_call>", "{bad}", "</tool_call>"), {}, "<tool_call>{bad}</tool_call>", [], "stop"),
        (says(*CALL[:CUT], finish=pb.FINISH_LENGTH), {}, "", [("get", '{"a": "')], "length"),
        (says(CALL, " and", finish=pb.FINISH_LENGTH), {}, " and", [GET], "length"),
        (says(' {"a": "é"}}', "\n</tool_call>", opening=CALL[:BEGUN]), {"tool_choice": NAMED}, "", [GET], "tool_calls"),
        (says(CALL), {"tool_choice": "none"}, CALL, [], "stop"),
        (says(CALL), {"tools": []}, CALL, [], "stop"),
        (says(), {}, "", [], "stop"),
    ],
)
async def test_streamed_or_not_the_answer_is_the_same(
    site: Site, script: Script, asked: dict[str, Any], content: str, calls: list[Any], finish: str
) -> None:
    site.fake.script = script
    expected = {"content": content, "calls": calls, "finish": [finish]}
    body = TOOLS | asked
    assert whole(await site.chat(**body)) == expected
    answer = await site.chat(**body, stream=True, n=2)
    assert [streamed(answer, index) for index in (0, 1)] == [expected] * 2
    usage = (await site.chat(**body, stream=True, stream_options={"include_usage": True})).events[-2]["usage"]
    assert usage["completion_tokens"] == (await site.chat(**body)).json["usage"]["completion_tokens"]


async def test_arguments_come_as_they_are_written(site: Site) -> None:
    async def script(submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        yield pb.Delta(tool_format=pb.TOOL_FORMAT_HERMES)
        yield pb.Delta(text='<tool_call>{"name": "get", "arguments": {"a":', tokens=1)
        await site.fake.hold.wait()
        yield error(503, "the engine was lost")

    site.fake.script = script
    async with site.open_stream(**TOOLS) as response:
        seen = b""
        while b'{\\"a\\":' not in seen:
            piece = await response.content.readany()
            assert piece, seen
            seen += piece
        site.fake.hold.set()
        assert b"the engine was lost" in await response.read()


async def test_a_refusal_of_the_tokenizer_is_a_status(site: Site) -> None:
    async def script(submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        yield pb.Delta(tool_format=pb.TOOL_FORMAT_HERMES, text="<tool_call>")
        yield error(503, "no live engine", code="no_engine")

    site.fake.script = script
    for stream in (False, True):
        assert (await site.chat(**TOOLS, stream=stream)).status == 503


def answering(text: str, finish: Finish = Finish.STOP) -> Callable[[list[int], int, int], tuple[list[int], Finish]]:
    """An engine's script: `text`, then the end token, or what of it max_tokens allows."""
    ids = [*toy_model().encode_text(text).tolist(), 2]

    def script(prompt: list[int], seed: int, max_tokens: int) -> tuple[list[int], Finish]:
        return (ids, finish) if len(ids) <= max_tokens else (ids[:max_tokens], Finish.LENGTH)

    return script


@asynccontextmanager
async def both(folder: Path, text: str, template: str, **settings: Any) -> AsyncIterator[tuple[Rig, Site]]:
    """A gateway, and a tokenizer whose engine answers `text`."""
    async with make_rig(folder, script=answering(text), template=template, **settings) as rig:
        tokenizer = FakeTokenizer()  # nobody asks it; the site knows a tokenizer by its address
        tokenizer.address = f"127.0.0.1:{rig.tokenizer.port}"
        async with site_of(tokenizer) as site:
            yield rig, site


def use_client(url: str) -> None:
    """An agent's turn: ask, call, answer; then the same as a stream."""
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    tools: list[Any] = TOOLS["tools"]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        first = client.chat.completions.create(model=TOY, messages=messages, tools=tools).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.content == "hello"
        assert first.message.tool_calls is not None
        (asked,) = first.message.tool_calls
        assert asked.type == "function"
        assert (asked.function.name, asked.function.arguments) == GET
        messages += [first.message, {"role": "tool", "tool_call_id": asked.id, "content": "42<|im_end|>"}]
        with client.chat.completions.stream(model=TOY, messages=messages, tools=tools) as stream:
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls"
        assert final.message.tool_calls is not None
        assert (final.message.tool_calls[0].function.name, final.message.tool_calls[0].function.arguments) == GET
        with pytest.raises(openai.BadRequestError, match="no earlier message has a call") as refusal:
            client.chat.completions.create(model=TOY, messages=[messages[0], messages[2]], tools=tools)
        assert refusal.value.param == "messages[1].tool_call_id"


async def test_official_client(tmp_path: Path) -> None:
    async with both(tmp_path, "hello\n" + CALL, templates.HERMES_TEXT) as (rig, site):
        await asyncio.to_thread(use_client, site.url)
        first, second = rig.engine.script.prompts
        assert second[: len(first)] == first, "what was written is written again as it was: the KV of it is found"
        assert [token for token in second if token < 3] == [1, 2] * 4 + [1]


async def test_max_tokens_and_stop_cut_a_call(tmp_path: Path) -> None:
    async with both(tmp_path, CALL, templates.HERMES_TEXT) as (_, site):
        head = len(toy_model().encode_text(CALL.partition(' "é"')[0]))
        for stream in (False, True):
            read = streamed if stream else whole
            cut = read(await site.chat(model=TOY, **TOOLS, stream=stream, max_tokens=head))
            assert cut == {"content": "", "calls": [("get", '{"a":')], "finish": ["length"]}
            cut = read(await site.chat(model=TOY, **TOOLS, stream=stream, stop="é"))
            assert cut == {"content": "", "calls": [("get", '{"a": "')], "finish": ["tool_calls"]}


async def test_a_call_that_is_asked_for(tmp_path: Path) -> None:
    async with both(tmp_path, ' {"a": 1}}', templates.LLAMA) as (rig, site):
        for stream in (False, True):
            read = streamed if stream else whole
            answer = read(await site.chat(model=TOY, **TOOLS, stream=stream, tool_choice=NAMED))
            assert answer == {"content": "", "calls": [("get", '{"a": 1}')], "finish": ["tool_calls"]}
        begun = toy_model().encode_text('{"name": "get", "parameters":').tolist()
        assert all(prompt[-len(begun) :] == begun for prompt in rig.engine.script.prompts)


async def test_a_model_without_tools_says_so(tmp_path: Path) -> None:
    async with both(tmp_path, CALL, CHATML) as (rig, site):
        for body in (TOOLS, TOOLS | {"stream": True}):
            answer = await site.chat(model=TOY, **body)
            assert (answer.status, answer.error["param"]) == (400, "tools")
            assert f"template of the model '{TOY}' doesn't use tools" in answer.error["message"]
        answer = await site.chat(model=TOY, **history(call()))
        assert (answer.status, answer.error["param"]) == (400, "messages[1].tool_calls")
        assert not rig.engine.script.prompts
        assert (await site.chat(model=TOY)).status == 200


async def test_the_parser_can_be_named(tmp_path: Path) -> None:
    async with both(tmp_path, CALL, templates.XML, tool_parser="hermes") as (_, site):
        assert whole(await site.chat(model=TOY, **TOOLS))["calls"] == [GET]
