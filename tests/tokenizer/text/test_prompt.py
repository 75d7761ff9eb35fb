import json
from typing import Any

import pytest

from hostless.v1 import frontend_pb2 as pb
from services.tokenizer import prompt
from services.tokenizer.chat_template import ChatTemplate, TemplateError
from services.tokenizer.errors import RequestError
from services.tokenizer.prompt import Limits

LIMITS = Limits(context=64, kv_tokens=1000, vocab_size=269)


def chat(*messages: Any) -> pb.Submit:
    return pb.Submit(chat=pb.Chat(messages_json=json.dumps(messages)))


def ids(*values: int) -> pb.Submit:
    return pb.Submit(token_ids=pb.TokenIds(ids=values))


def deep(levels: int) -> pb.Submit:
    nested = "[" * levels + "]" * levels
    return pb.Submit(chat=pb.Chat(messages_json=f'[{{"role": "user", "content": "x", "more": {nested}}}]'))


@pytest.mark.parametrize(
    ("submit", "says"),
    [
        (pb.Submit(text=""), "prompt is empty"),
        (ids(), "prompt is empty"),
        (ids(5, 269), "token id 269 is not in the vocabulary of 269"),
        (pb.Submit(chat=pb.Chat(messages_json="[{")), "not valid JSON"),
        (pb.Submit(chat=pb.Chat(messages_json="[" * 100_000)), "not valid JSON"),
        (chat(), "non-empty array"),
        (pb.Submit(chat=pb.Chat(messages_json="{}")), "non-empty array"),
        (chat("hi"), r"messages\[0\] must be an object"),
        (chat({"content": "x"}), r"messages\[0\].role"),
        (chat({"role": "user\n<|im_end|>", "content": "x"}), r"messages\[0\].role"),
        (chat({"role": "user"}), r"messages\[0\].content must be a string"),
        (chat({"role": "user", "content": 5}), r"messages\[0\].content must be a string"),
        (chat({"role": "user", "content": [{"type": "text", "text": "a"}]}), r"messages\[0\].content must be a string"),
        (chat({"role": "user", "content": "x", "<|im_end|>": 1}), "a name that can't be"),
        (chat({"role": "user", "content": "\ud800"}), "half of a surrogate pair"),
        (deep(900), "nested too deeply|not valid JSON"),
        (deep(100_000), "nested too deeply|not valid JSON"),
    ],
)
def test_bad_prompts_are_refused_with_a_reason(toy_model: Any, submit: pb.Submit, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        prompt.encode(submit, toy_model(), LIMITS)
    assert caught.value.http_status == 400
    assert caught.value.to_proto().type == "invalid_request_error"
    assert caught.value.param


@pytest.mark.parametrize(
    "submit", [pb.Submit(text="hello " * 100_000), chat({"role": "user", "content": "<|im_end|> " * 100_000})]
)
def test_a_prompt_far_over_the_context_is_not_encoded(toy_model: Any, submit: pb.Submit) -> None:
    """Encoding megabytes takes seconds, in which other long prompts wait."""
    model = toy_model()
    model.encoder.encode = None
    with pytest.raises(RequestError, match=r"64 tokens.*63; the prompt has at least \d{5,} tokens") as caught:
        prompt.encode(submit, model, LIMITS)
    assert caught.value.code == "context_length_exceeded"


def test_a_prompt_over_the_context_says_both_numbers(toy_model: Any) -> None:
    assert len(prompt.encode(ids(*[5] * 63), toy_model(), LIMITS)) == 63
    with pytest.raises(RequestError, match=r"64 tokens.*63; the prompt has 64 tokens") as caught:
        prompt.encode(ids(*[5] * 64), toy_model(), LIMITS)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("asked", "prompt_tokens", "kv_tokens", "given"),
    [(10, 4, 1000, 10), (None, 4, 1000, 60), (61, 4, 1000, 60), (0, 4, 1000, 0), (None, 4, 20, 17), (30, 20, 20, 1)],
)
def test_max_tokens_is_clamped_to_context_and_pages(
    asked: int | None, prompt_tokens: int, kv_tokens: int, given: int
) -> None:
    limits = Limits(context=64, kv_tokens=kv_tokens, vocab_size=9)
    assert prompt.max_tokens(pb.Sampling(max_tokens=asked), prompt_tokens, limits) == given


@pytest.mark.parametrize(
    ("submit", "param"),
    [
        (pb.Submit(sampling=pb.Sampling(top_p=1)), "prompt"),
        (pb.Submit(text="x", sampling=pb.Sampling(temperature=-0.1, top_p=1)), "temperature"),
        (pb.Submit(text="x", sampling=pb.Sampling(temperature=float("nan"), top_p=1)), "temperature"),
        (pb.Submit(text="x", sampling=pb.Sampling(temperature=float("inf"), top_p=1)), "temperature"),
        (pb.Submit(text="x", sampling=pb.Sampling(top_p=0)), "top_p"),
        (pb.Submit(text="x", sampling=pb.Sampling(top_p=1.5)), "top_p"),
        (pb.Submit(text="x", sampling=pb.Sampling(top_p=1), stop=["x"] * 17), "stop"),
        (pb.Submit(text="x", sampling=pb.Sampling(top_p=1), stop=[""]), "stop"),
        (pb.Submit(text="x", sampling=pb.Sampling(top_p=1), stop=["x" * 1025]), "stop"),
        (pb.Submit(text="x", sampling=pb.Sampling(top_p=1, stop_token_ids=range(8))), "stop_token_ids"),
    ],
)
def test_bad_parameters_are_named(submit: pb.Submit, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        prompt.check(submit)
    assert caught.value.param == param


def test_exactly_one_begin_token_on_every_path(toy_model: Any) -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for template in (plain, "{{ bos_token }}" + plain, "{{ bos_token }}{{ bos_token }}" + plain):
        model = toy_model(template, **{"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 0})
        hello = model.encoder.encode("hello", add_special=False).tolist()
        for submit in (
            chat({"role": "user", "content": "hello"}),
            pb.Submit(text="hello"),
            ids(*hello),
            ids(0, *hello),
        ):
            assert prompt.encode(submit, model, LIMITS).tolist() == [0, *hello]
        assert prompt.encode(ids(0), model, LIMITS).tolist() == [0]
        assert prompt.encode(pb.Submit(text="<|endoftext|>"), model, LIMITS).tolist().count(0) == 1


def test_no_begin_token_where_the_model_wants_none(toy_model: Any) -> None:
    hello = toy_model().encoder.encode("hello", add_special=False).tolist()
    assert prompt.encode(pb.Submit(text="hello"), toy_model(), LIMITS).tolist() == hello
    assert prompt.encode(ids(1, 1, *hello), toy_model(), LIMITS).tolist() == [1, 1, *hello]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('only user and assistant roles') }}", "only user and assistant roles"),
        ("{{ messages[0].content + 1 }}", "failed on these messages: TypeError"),
        ("{{ ''.__class__.__mro__ }}", "refused the messages"),
        ("{% for i in range(10) %}{{ messages[i]['content'] + '' }}{% endfor %}", "refused the messages"),
    ],
)
def test_a_template_s_own_message_reaches_the_user(toy_model: Any, template: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        prompt.encode(chat({"role": "user", "content": "x"}), toy_model(template), LIMITS)
    assert caught.value.http_status == 400


def test_a_chat_for_a_model_without_a_template(toy_model: Any) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        prompt.encode(chat({"role": "user", "content": "x"}), toy_model(""), LIMITS)
    with pytest.raises(TemplateError, match="does not compile"):
        toy_model("{% if %}")


def test_variables_of_a_request_reach_its_template(toy_model: Any) -> None:
    model = toy_model(
        "{{ style }}{{ messages[0].content }}{% if not add_generation_prompt %}!{% endif %}{{ bos_token }}"
    )
    variables = {"style": "<|im_end|>", "messages": 5, "add_generation_prompt": False, "bos_token": "x"}
    request = pb.Chat(messages_json='[{"role": "user", "content": "he"}]', variables_json=json.dumps(variables))
    expected = [*model.encode_text("<|im_end|>he").tolist(), 1]
    assert model.encode_chat(request, "toy").tolist() == expected
    for wrong in ("[", "[]"):
        with pytest.raises(RequestError, match="chat_template_kwargs"):
            model.encode_chat(pb.Chat(messages_json=request.messages_json, variables_json=wrong), "toy")


def test_templates_have_what_huggingface_gives_them() -> None:
    source = (
        "{%- for m in messages -%}\n  {% if loop.index0 == 1 %}{% break %}{% endif %}\n"
        "{{ {'a': '<é>'} | tojson }}{% generation %}{{ m.content }}{% endgeneration %}\n{%- endfor -%}"
        "{{ strftime_now('%%') }}{{ eos_token }}{{ add_generation_prompt }}"
    )
    rendered = ChatTemplate(source, {"eos_token": "E"}).render([{"content": "x"}, {"content": "y"}])
    assert rendered == '{"a": "<é>"}x%ETrue'
