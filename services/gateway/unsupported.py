"""Parts of OpenAI's API, and of vLLM's additions to it, that are refused unless they ask for nothing."""

from collections.abc import Callable
from typing import Any

from services.gateway.errors import not_supported

Neutral = Callable[[Any], bool]


def _is(*neutral: object) -> Neutral:
    return lambda value: any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


def _empty(value: Any) -> bool:
    return value in ([], {}, "")


_BOTH: dict[str, tuple[Neutral, str]] = {
    "presence_penalty": (_is(0), "omit it or send 0"),
    "frequency_penalty": (_is(0), "omit it or send 0"),
    "repetition_penalty": (_is(1), "omit it or send 1"),
    "logit_bias": (_empty, "omit it or send {}"),
    "min_p": (_is(0), "omit it or send 0"),
    "min_tokens": (_is(0), "omit it or send 0"),
    "use_beam_search": (_is(False), "omit it or send false"),
    "response_format": (_is({"type": "text"}), 'omit it or send {"type": "text"}'),
    "guided_json": (_empty, "omit it"),
    "guided_regex": (_empty, "omit it"),
    "guided_choice": (_empty, "omit it"),
    "guided_grammar": (_empty, "omit it"),
    "structured_outputs": (_empty, "omit it"),
}
_CHAT: dict[str, tuple[Neutral, str]] = {
    "logprobs": (_is(False), "omit it or send false"),
    "top_logprobs": (_is(0), "omit it or send 0"),
    "functions": (_empty, "send tools"),
    "function_call": (_is("none", "auto"), "send tool_choice"),
    "audio": (_empty, "omit it"),
    "modalities": (_is(["text"]), 'omit it or send ["text"]'),
    "prediction": (_empty, "omit it"),
    "web_search_options": (lambda value: False, "omit it"),
    "chat_template": (_empty, "omit it; the model's own template is used"),
    "echo": (_is(False), "omit it or send false"),
}
_TEXT: dict[str, tuple[Neutral, str]] = {
    "logprobs": (lambda value: False, "omit it or send null"),
    "suffix": (_empty, "omit it or send null"),
}


def refuse_unsupported(values: dict[str, Any], chat: bool) -> None:
    """Raises ApiError(400) that names the first field whose value asks for something not there yet."""
    for table in (_BOTH, _CHAT if chat else _TEXT):
        for name, (neutral, remedy) in table.items():
            value = values.get(name)
            if value is not None and not neutral(value):
                raise not_supported(name, f"{name} is not supported yet; {remedy}")
