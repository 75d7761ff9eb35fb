"""Bodies: what is accepted means what it should, what is not is refused with words that help."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.errors import ApiError
from services.gateway.openai_schema import Request, read_chat, read_completion
from services.gateway.prompts import ChatPrompt
from services.gateway.submit import to_submits

MAX_CHOICES = 8
USER = {"role": "user", "content": "Hi"}


def chat(**more: Any) -> Request:
    return read_chat({"model": "m", "messages": [USER], **more}, MAX_CHOICES)


def complete(prompt: Any = "Once", **more: Any) -> Request:
    return read_completion({"model": "m", "prompt": prompt, **more}, MAX_CHOICES)


BOTH: list[tuple[dict[str, Any], str | None, str]] = [
    ({"model": None}, "model", "missing"),
    ({"model": ""}, "model", "missing"),
    ({"model": 5}, "model", "must be a string, not an integer"),
    ({"model": "x" * 300}, "model", "at most 256"),
    ({"model": "\ud800"}, "model", "surrogate"),
    ({"n": 0}, "n", "from 1 to 8, not 0"),
    ({"n": 9}, "n", "from 1 to 8"),
    ({"n": 1.5}, "n", "not a number"),
    ({"n": True}, "n", "not a boolean"),
    ({"n": "2"}, "n", "not a string"),
    ({"n": 10**400}, "n", "a huge one"),
    ({"temperature": -0.1}, "temperature", "from 0 to 2"),
    ({"temperature": 2.1}, "temperature", "not 2.1"),
    ({"temperature": "hot"}, "temperature", "not a string"),
    ({"temperature": True}, "temperature", "not a boolean"),
    ({"temperature": 10**400}, "temperature", "a huge integer"),
    ({"temperature": float("inf")}, "temperature", "from 0 to 2"),
    ({"temperature": [1]}, "temperature", "not an array"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"top_p": 1.1}, "top_p", "from 0 to 1"),
    ({"top_k": -2}, "top_k", "at least -1"),
    ({"top_k": 2.5}, "top_k", "integer"),
    ({"seed": 2**64}, "seed", "from -9223372036854775808"),
    ({"seed": 1.5}, "seed", "integer"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": -(10**400)}, "max_tokens", "a huge one"),
    ({"max_completion_tokens": "9"}, "max_completion_tokens", "integer"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "only one of them"),
    ({"stop": 5}, "stop", "a string or an array"),
    ({"stop": ["a", 5]}, "stop", "a string or an array"),
    ({"stop": ""}, "stop", "empty string"),
    ({"stop": ["a", ""]}, "stop", "empty string"),
    ({"stop": ["a"] * 17}, "stop", "at most 16"),
    ({"stop": "x" * 2000}, "stop", "at most 1024"),
    ({"stop": "\udfff"}, "stop", "surrogate"),
    ({"stop_token_ids": 5}, "stop_token_ids", "up to 7"),
    ({"stop_token_ids": [1] * 8}, "stop_token_ids", "up to 7"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "token ids"),
    ({"stream": 1}, "stream", "true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "only with stream"),
    ({"stream": True, "stream_options": 5}, "stream_options", "an object"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "true or false"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
        "not supported yet",
    ),
    ({"ignore_eos": "yes"}, "ignore_eos", "true or false"),
    ({"user": 5}, "user", "a string"),
    ({"best_of": 2}, "best_of", "not supported yet"),
    ({"best_of": 1, "n": 2}, "best_of", "at least n"),
    ({"presence_penalty": 0.5}, "presence_penalty", "not supported yet; omit it or send 0"),
    ({"frequency_penalty": -1}, "frequency_penalty", "not supported yet"),
    ({"presence_penalty": False}, "presence_penalty", "not supported yet"),
    ({"repetition_penalty": 1.1}, "repetition_penalty", "not supported yet"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "not supported yet"),
    ({"response_format": {"type": "json_object"}}, "response_format", "not supported yet"),
    ({"response_format": "text"}, "response_format", "not supported yet"),
    ({"guided_json": {"type": "object"}}, "guided_json", "not supported yet"),
    ({"min_p": 0.1}, "min_p", "not supported yet"),
]
CHAT: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": None}, "messages", "missing"),
    ({"messages": []}, "messages", "1 to"),
    ({"messages": "Hi"}, "messages", "an array"),
    ({"messages": {"role": "user"}}, "messages", "an array"),
    ({"messages": ["Hi"]}, "messages[0]", "an object"),
    ({"messages": [USER, {"content": "x"}]}, "messages[1].role", "one of system"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role", "one of system"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "one of system"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "not null"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a string or an array"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", "an object"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "a string"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0]",
        "not supported yet",
    ),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0]", "send tool_calls and role tool"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "surrogate"),
    ({"messages": [{"role": "user", "content": "x", "more": float("inf")}]}, "messages", "too large"),
    ({"logprobs": True}, "logprobs", "not supported yet"),
    ({"top_logprobs": 3}, "top_logprobs", "not supported yet"),
    ({"functions": [{}]}, "functions", "not supported yet; send tools"),
    ({"audio": {"voice": "x"}}, "audio", "not supported yet"),
    ({"modalities": ["audio"]}, "modalities", "not supported yet"),
    ({"chat_template_kwargs": 5}, "chat_template_kwargs", "an object, not an integer"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "has 'messages': names are"),
    ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs", "has 'a b': names are"),
    ({"chat_template_kwargs": {"a": float("nan")}}, "chat_template_kwargs", "too large"),
    ({"chat_template_kwargs": {"a": "\ud800"}}, "chat_template_kwargs", "surrogate"),
    ({"echo": True}, "echo", "not supported yet"),
]
COMPLETION: list[tuple[dict[str, Any], str | None, str]] = [
    ({"prompt": None}, "prompt", "missing"),
    ({"prompt": ""}, "prompt", "empty string"),
    ({"prompt": []}, "prompt", "empty array"),
    ({"prompt": [[]]}, "prompt[0]", "empty array"),
    ({"prompt": ["a", ""]}, "prompt[1]", "empty string"),
    ({"prompt": [[1], []]}, "prompt[1]", "empty array"),
    ({"prompt": 5}, "prompt", "a string, an array"),
    ({"prompt": {"text": "x"}}, "prompt", "a string, an array"),
    ({"prompt": ["a", 5]}, "prompt", "mixes kinds"),
    ({"prompt": [1, "a"]}, "prompt", "token ids"),
    ({"prompt": [1, True]}, "prompt", "token ids"),
    ({"prompt": [True]}, "prompt", "token ids"),
    ({"prompt": [1, 2.0]}, "prompt", "token ids"),
    ({"prompt": [1, -1]}, "prompt", "token ids"),
    ({"prompt": [2**32]}, "prompt", "token ids"),
    ({"prompt": [10**400]}, "prompt", "token ids"),
    ({"prompt": [[1], [2, "a"]]}, "prompt[1]", "token ids"),
    ({"prompt": [[[1]]]}, "prompt[0]", "token ids"),
    ({"prompt": [None]}, "prompt", "mixes kinds"),
    ({"prompt": ["a"] * 9}, "prompt", "at most 8"),
    ({"prompt": ["a"] * 4, "n": 3}, "n", "12 choices"),
    ({"prompt": "\ud83d"}, "prompt", "surrogate"),
    ({"echo": 1}, "echo", "true or false"),
    ({"logprobs": 0}, "logprobs", "not supported yet"),
    ({"suffix": "end"}, "suffix", "not supported yet"),
]
CASES = [
    *((read, case) for case in BOTH for read in (chat, complete)),
    *((chat, case) for case in CHAT),
    *((complete, case) for case in COMPLETION),
]


@pytest.mark.parametrize(("read", "case"), CASES, ids=[f"{read.__name__}-{case[1]}" for read, case in CASES])
def test_refused(read: Any, case: tuple[dict[str, Any], str | None, str]) -> None:
    body, param, message = case
    with pytest.raises(ApiError) as refusal:
        read(**body)
    error = refusal.value
    assert (error.status, error.type, error.param) == (400, "invalid_request_error", param)
    assert message in error.message
    assert error.body().isascii()


def test_copies_of_a_long_prompt_are_bounded() -> None:
    assert complete("x" * (8 << 20), n=4).choices == 4
    with pytest.raises(ApiError, match="n = 5 is too much"):
        complete("x" * (8 << 20), n=5)


def test_null_means_absent() -> None:
    fields = [*{name for body, _, _ in BOTH + CHAT + COMPLETION for name in body} - {"model", "messages", "prompt"}]
    assert chat(**dict.fromkeys(fields)) == chat()
    assert complete(**dict.fromkeys(fields)) == complete()


def test_neutral_values_and_extras_are_accepted() -> None:
    neutral = {
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": {},
        "best_of": 1,
        "min_p": 0,
        "response_format": {"type": "text"},
        "stop": [],
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "never_heard_of": [1, {}],
    }
    tools = {"tools": [], "tool_choice": "none", "logprobs": False, "top_logprobs": 0, "modalities": ["text"]}
    assert chat(**neutral, **tools, parallel_tool_calls=True) == chat()
    assert complete(**neutral, suffix="") == complete()


def test_variables_of_the_template_go_to_it() -> None:
    (submit,) = to_submits(chat(chat_template_kwargs={"enable_thinking": False, "style": "é"}), "r", "", "")
    assert submit.chat.variables_json == '{"enable_thinking":false,"style":"é"}'
    assert chat(chat_template_kwargs={}) == chat()


def test_defaults() -> None:
    sampling = chat().sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (None,) * 4
    assert sampling.max_tokens is None
    assert complete().sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 16.0}, 16),
        ({"max_tokens": 10**400}, 2**32 - 1),
        ({"max_tokens": 1e300}, 2**32 - 1),
    ],
)
def test_max_tokens(given: dict[str, Any], read: int) -> None:
    assert chat(**given).sampling.max_tokens == read
    assert complete(**given).sampling.max_tokens == read


def test_edges_of_sampling() -> None:
    assert chat(top_k=-1).sampling.top_k == 0
    assert chat(top_p=1e-300).sampling.top_p > 1e-7  # still above 0 when it is 32 bits wide
    assert chat(seed=-1).sampling.seed == 2**64 - 1
    assert chat(seed=2**64 - 1).sampling.seed == 2**64 - 1
    assert chat(temperature=2).sampling.temperature == 2


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([0, 2**32 - 1], ((0, 2**32 - 1),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_kinds_of_prompt(prompt: Any, prompts: Any) -> None:
    request = complete(prompt, n=2)
    assert request.prompts == prompts
    assert request.choices == 2 * len(prompts)


def test_messages_become_what_templates_know() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(
        messages=[
            {"role": "system", "content": "s", "name": "x"},
            {"role": "developer", "content": ""},
            {"role": "assistant", "content": "ü", "refusal": None, "tool_calls": None, "reasoning_content": "r"},
            {"role": "user", "content": parts},
        ]
    )
    assert request.prompts == (
        ChatPrompt(
            '[{"role":"system","content":"s","name":"x"},{"role":"developer","content":""},'
            '{"role":"assistant","content":"ü","reasoning_content":"r"},{"role":"user","content":"a\\nb"}]'
        ),
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(sorted({name for body, _, _ in BOTH + CHAT + COMPLETION for name in body}))


@given(st.dictionaries(names, json_values, max_size=6))
def test_nothing_but_an_api_error_comes_of_any_json(body: dict[str, Any]) -> None:
    for read in (chat, complete):
        with contextlib.suppress(ApiError):
            assert isinstance(read(**body), Request)
