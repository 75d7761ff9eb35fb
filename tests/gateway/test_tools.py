"""Tools, calls and results in bodies: what is made of them, and what is refused with words that help."""

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given

from services.gateway.errors import ApiError
from services.gateway.openai_schema import Request
from services.gateway.prompts import ChatPrompt
from services.gateway.submit import to_submits
from services.gateway.tools import MAX_TOOLS, Tools, read_tools
from tests.gateway.test_openai_schema import USER, chat, json_values


def tool(name: str = "get", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def schema(**more: Any) -> dict[str, Any]:
    return {"tools": [tool(parameters={"type": "object", **more})]}


def call(identity: Any = "1", name: Any = "get", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def history(*calls: Any, **result: Any) -> dict[str, Any]:
    answer = {"role": "tool", "tool_call_id": "1", "content": "42", **result}
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": list(calls)}, answer]}


NAMED = {"type": "function", "function": {"name": "get"}}
OTHER = {"type": "function", "function": {"name": "put"}}
PARAMETERS = "tools[0].function.parameters"
CALL = "messages[1].tool_calls[0]"

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": "get"}, "tools", "an array of functions, not a string"),
    ({"tools": [5]}, "tools[0]", "not an integer"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", 'must be "function"'),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
    ({"tools": [{"type": "function", "function": 5}]}, "tools[0].function", "an object, not an integer"),
    ({"tools": [{**tool(), "cache": True}]}, "tools[0]", "'cache', which is not known; known: type, function"),
    ({"tools": [tool(returns={})]}, "tools[0].function", "'returns', which is not known"),
    ({"tools": [tool("")]}, "tools[0].function.name", "1 to 64 of letters"),
    ({"tools": [tool("<|im_end|>")]}, "tools[0].function.name", "1 to 64 of letters"),
    ({"tools": [tool(), tool("put"), tool()]}, "tools[2].function.name", "two functions named get"),
    ({"tools": [tool(description=5)]}, "tools[0].function.description", "a string"),
    ({"tools": [tool(description="\ud800")]}, "tools[0].function.description", "surrogate"),
    ({"tools": [tool(strict="yes")]}, "tools[0].function.strict", "true or false"),
    ({"tools": [tool(parameters=[])]}, PARAMETERS, "an object, not an array"),
    ({"tools": [tool(f"f{i}") for i in range(MAX_TOOLS + 1)]}, "tools", "at most 1024"),
    ({"tools": [tool(parameters={"type": "string"})]}, f"{PARAMETERS}.type", 'must be "object"'),
    (schema(properties=[]), f"{PARAMETERS}.properties", "an object of schemas, not an array"),
    (schema(properties={"a": {"type": "text"}}), f"{PARAMETERS}.properties.a.type", "one or more of string"),
    (schema(properties={"a": {"type": ["null", 5]}}), f"{PARAMETERS}.properties.a.type", "one or more of string"),
    (schema(items={"anyOf": [{}, {"type": "int"}]}), f"{PARAMETERS}.items.anyOf[1].type", "one or more of string"),
    (schema(maximum=float("inf")), "tools", "too large"),
    (schema(title="\udfff"), "tools", "surrogate"),
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tool_choice": "any", "tools": [tool()]}, "tool_choice", '"required" or'),
    ({"tool_choice": 5, "tools": [tool()]}, "tool_choice", '"required" or'),
    ({"tool_choice": {"type": "allowed_tools"}, "tools": [tool()]}, "tool_choice.type", "not supported yet"),
    ({"tool_choice": {"type": "function"}, "tools": [tool()]}, "tool_choice.function.name", "must name a function"),
    ({"tool_choice": OTHER, "tools": [tool()]}, "tool_choice.function.name", "'put', which is not among the tools"),
    ({"tool_choice": NAMED}, "tool_choice.function.name", "not among the tools"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
    ({"messages": [{**USER, "tool_calls": [call()]}]}, "messages[0].tool_calls", "only with role assistant"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": 5}]}, "messages[1].tool_calls", "an array of calls"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": []}]}, "messages[1].content", "not null"),
    (history(5), CALL, "not an integer"),
    (history(call(type="custom")), f"{CALL}.type", 'must be "function"'),
    (history(call(None)), f"{CALL}.id", "1 to 256 characters"),
    (history({"id": "1"}), f"{CALL}.function", "an object with name and arguments"),
    (history(call(name="")), f"{CALL}.function.name", "1 to 256 characters"),
    (history(call(arguments={})), f"{CALL}.function.arguments", "a string of JSON, not an object"),
    (history(call(arguments="[" * 100_001)), f"{CALL}.function.arguments", "more than 100000 arrays"),
    (history(call(), call()), "messages[1].tool_calls", "two calls with one id"),
    (history(*[call(str(i)) for i in range(129)]), "messages[1].tool_calls", "at most 128"),
    (history(call("2")), "messages[2].tool_call_id", "'1', but no earlier message has a call of that id"),
    (history(call(), tool_call_id=None), "messages[2].tool_call_id", "missing"),
    (history(call(), content=None), "messages[2].content", "not null"),
]


@pytest.mark.parametrize("case", REFUSED, ids=[f"{case[1]}-{index}" for index, case in enumerate(REFUSED)])
def test_refused(case: tuple[dict[str, Any], str, str]) -> None:
    body, param, message = case
    with pytest.raises(ApiError) as refusal:
        chat(**body)
    error = refusal.value
    assert (error.status, error.type, error.param) == (400, "invalid_request_error", param)
    assert message in error.message


def test_tools_get_the_form_that_templates_know() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "type": {"enum": [1]}}}
    given = {
        "function": {"strict": True, "parameters": parameters, "description": "é", "name": "get"},
        "type": "function",
    }
    read = chat(tools=[given, tool("put", description=None, parameters={})], parallel_tool_calls=False).tools
    assert read is not None
    assert (read.parallel, read.call) == (False, None)
    assert json.loads(read.json) == [tool(description="é", parameters=parameters), tool("put", parameters={})]
    assert list(json.loads(read.json)[0]["function"]) == ["name", "description", "parameters"]


@pytest.mark.parametrize(
    ("choice", "call"), [(None, None), ("auto", None), ("required", ""), (OTHER, "put"), (NAMED, "get")]
)
def test_choice(choice: Any, call: str | None) -> None:
    request = chat(tools=[tool(), tool("put")], tool_choice=choice)
    assert request.tools == Tools(request.tools.json if request.tools else "", True, call)
    (submit,) = to_submits(request, "r", "", "")
    assert submit.chat.tools_json
    assert (submit.chat.call if submit.chat.HasField("call") else None) == call


def test_the_only_tool_is_the_one_that_is_required() -> None:
    tools = chat(tools=[tool()], tool_choice="required").tools
    assert tools is not None
    assert tools.call == "get"


def test_without_tools_nothing_changes() -> None:
    bodies: list[dict[str, Any]] = [{"tools": []}, {"tools": [tool()], "tool_choice": "none"}, {"tool_choice": "auto"}]
    for body in bodies:
        assert chat(**body, parallel_tool_calls=False) == chat()


def test_calls_and_results_become_what_templates_know() -> None:
    asked = {"role": "assistant", "content": "Well", "tool_calls": [call("2", "a.b", "{bad")], "refusal": None}
    answered = {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "43"}], "name": "mine"}
    body = history(call(more=1))
    (prompt,) = chat(messages=[*body["messages"], asked, answered]).prompts
    assert isinstance(prompt, ChatPrompt)
    assert json.loads(prompt.messages_json) == [
        USER,
        {"role": "assistant", "tool_calls": [call()], "content": None},
        {"role": "tool", "tool_call_id": "1", "content": "42", "name": "get"},
        {"role": "assistant", "content": "Well", "tool_calls": [call("2", "a.b", "{bad")]},
        {"role": "tool", "tool_call_id": "2", "content": "43", "name": "mine"},
    ]


@given(json_values)
def test_any_json_is_refused_or_read(value: Any) -> None:
    bodies = [{"tools": value}, {"tools": [value]}, {"tools": [tool(parameters=value)]}, {"tool_choice": value}]
    for body in (*bodies, history(value), history(call(), tool_call_id=value), schema(properties=value)):
        with contextlib.suppress(ApiError):
            assert isinstance(chat(**body), Request)


def test_schemas_deep_down_are_not_each_named() -> None:
    """Only the wrong one is: names of all would take 2 KB each."""
    schema: dict[str, Any] = {"anyOf": [{} for _ in range(10_000)]}
    for _ in range(27):
        schema = {"type": "object", "properties": {"k" * 64: schema}}
    read_tools({"tools": [tool(parameters=schema)]})  # what is made once
    tracemalloc.start()
    try:
        read_tools({"tools": [tool(parameters=schema)]})
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()
    wrong = {"anyOf": [{}, {"items": {"type": "nothing"}}]}
    with pytest.raises(ApiError) as refused:
        read_tools({"tools": [tool(parameters={"properties": {"a": wrong}})]})
    assert refused.value.param == "tools[0].function.parameters.properties.a.anyOf[1].items.type"
