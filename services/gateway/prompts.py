"""Prompts in all the kinds that OpenAI's API takes."""

from dataclasses import dataclass
from typing import Any

from services.gateway.body import json_type
from services.gateway.errors import invalid
from services.gateway.fields import check_unicode
from services.gateway.tools import Tools

UINT32 = 2**32 - 1


@dataclass(frozen=True)
class ChatPrompt:
    """The messages as a JSON array, ready for a chat template, what the model may call, and what else the template is
    given, as a JSON object or empty."""

    messages_json: str
    tools: Tools | None = None
    variables_json: str = ""


Prompt = ChatPrompt | str | tuple[int, ...]


def size_of(prompt: Prompt) -> int:
    """About how many bytes the prompt takes on its way."""
    if isinstance(prompt, tuple):
        return 4 * len(prompt)
    if isinstance(prompt, ChatPrompt):
        tools = len(prompt.tools.json) if prompt.tools else 0
        return len(prompt.messages_json) + tools + len(prompt.variables_json)
    return len(prompt)


def read_prompts(value: Any, max_prompts: int) -> tuple[Prompt, ...]:
    """The prompts of /v1/completions, at most `max_prompts`. Raises ApiError(400)."""
    kinds = "a string, an array of strings, an array of token ids, or an array of arrays of token ids"
    if value is None:
        raise invalid("prompt", f"prompt is missing: {kinds}")
    if isinstance(value, str):
        return (_text_prompt("prompt", value),)
    if not isinstance(value, list):
        raise invalid("prompt", f"prompt must be {kinds}, not {json_type(value)}")
    if not value:
        raise invalid("prompt", f"prompt is an empty array; send {kinds}")
    if isinstance(value[0], int):
        return (token_ids("prompt", value),)
    if len(value) > max_prompts:
        raise invalid("prompt", f"prompt holds {len(value)} prompts; at most {max_prompts} a request")
    if all(isinstance(one, str) for one in value):
        return tuple(_text_prompt(f"prompt[{index}]", one) for index, one in enumerate(value))
    if all(isinstance(one, list) for one in value):
        return tuple(token_ids(f"prompt[{index}]", one) for index, one in enumerate(value))
    raise invalid("prompt", f"prompt must be {kinds}; this array mixes kinds")


def _text_prompt(name: str, text: str) -> str:
    if not text:
        raise invalid(name, f"{name} is an empty string; send at least one character")
    return check_unicode(name, text)


def token_ids(name: str, ids: list[Any]) -> tuple[int, ...]:
    """Raises ApiError(400) unless there is at least one and each fits in 32 bits; the tokenizer knows which exist."""
    if not ids:
        raise invalid(name, f"{name} is an empty array; send at least one token id")
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > UINT32:
        raise invalid(name, f"{name} must hold only token ids: integers from 0 to the vocabulary's size")
    return tuple(ids)
