"""The bodies and stream chunks that OpenAI's clients expect."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any

from hostless.v1 import frontend_pb2 as pb
from services.gateway.errors import ApiError
from services.gateway.openai_schema import Request
from services.gateway.reply import Choice
from services.gateway.tool_calls.answer import Answer
from services.gateway.tools import Tools

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Identity:
    """What all parts of one response carry."""

    id: str
    created: int
    model: str
    fingerprint: str


def usage_of(choices: Sequence[Choice], n: int) -> dict[str, Any]:
    """OpenAI's count: each prompt once, however many choices it has; all choices' tokens."""
    seen = [choice.usage or pb.Usage() for choice in choices]
    prompts = [seen[first : first + n] for first in range(0, len(seen), n)]
    prompt_tokens = sum(max(usage.prompt_tokens for usage in prompt) for prompt in prompts)
    cached_tokens = sum(max(usage.cached_tokens for usage in prompt) for prompt in prompts)
    completion_tokens = sum(usage.completion_tokens for usage in seen)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def _answer(tools: Tools | None, choice: Choice) -> Answer | None:
    """What reads the calls in a choice's text; None where there are none. Once there is news of the choice."""
    return Answer(choice.tool_format, tools.parallel) if tools and choice.tool_format else None


def whole_body(identity: Identity, request: Request, choices: Sequence[Choice], texts: Sequence[str]) -> bytes:
    """The body of a response that is not streamed; `texts` belong to `choices`."""
    body = {
        "id": identity.id,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": identity.created,
        "model": identity.model,
        "choices": [_whole_choice(request, choice, text) for choice, text in zip(choices, texts, strict=True)],
        "usage": usage_of(choices, request.n),
        "system_fingerprint": identity.fingerprint,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def _whole_choice(request: Request, choice: Choice, text: str) -> dict[str, Any]:
    head: dict[str, Any] = {"index": choice.index}
    reason = choice.finish
    if request.chat:
        message: dict[str, Any] = {"content": text}
        if (answer := _answer(request.tools, choice)) and reason is not None:
            message = answer.message(text)
            reason = answer.reason(reason)
        head["message"] = {"role": "assistant", **message, "refusal": None}
    else:
        head["text"] = text
    return {**head, "logprobs": None, "finish_reason": reason}


class Chunks:
    """Server-sent events of one stream, as bytes ready to be written.

    A token's event is its text between two strings made once a choice. Everything is ASCII, so that no client's
    idea of a line end (U+2028, U+0085) can cut an event.
    """

    def __init__(self, identity: Identity, request: Request) -> None:
        self._chat = request.chat
        self._n = request.n
        head = {
            "id": identity.id,
            "object": "chat.completion.chunk" if request.chat else "text_completion",
            "created": identity.created,
            "model": identity.model,
            "system_fingerprint": identity.fingerprint,
        }
        self._head = "data: " + json.dumps(head, separators=(",", ":"))[:-1]
        # With include_usage OpenAI sends the field in every chunk, null in all but the last.
        self._tail = ',"usage":null}\n\n' if request.include_usage else "}\n\n"
        text_tail = (
            '},"logprobs":null,"finish_reason":null}]' if request.chat else ',"logprobs":null,"finish_reason":null}]'
        )
        self._text_tail = text_tail + self._tail
        key = '"delta":{"content":' if request.chat else '"text":'
        self._text_heads = [f'{self._head},"choices":[{{"index":{index},{key}' for index in range(request.choices)]

    def text(self, index: int, text: str) -> bytes:
        return (self._text_heads[index] + encode_basestring_ascii(text) + self._text_tail).encode()

    def role(self, index: int) -> bytes:
        """The first chunk of a chat's choice."""
        return self._choice(index, {"delta": {"role": "assistant", "content": "", "refusal": None}}, None)

    def delta(self, index: int, delta: Mapping[str, Any]) -> bytes:
        """What an Answer makes of a text."""
        if "content" in delta:
            return self.text(index, delta["content"])
        return self._choice(index, {"delta": delta}, None)

    def finish(self, index: int, reason: str) -> bytes:
        return self._choice(index, {"delta": {}} if self._chat else {"text": ""}, reason)

    def usage(self, choices: Sequence[Choice]) -> bytes:
        """The chunk before [DONE] that include_usage asks for."""
        usage = json.dumps(usage_of(choices, self._n), separators=(",", ":"))
        return f'{self._head},"choices":[],"usage":{usage}}}\n\n'.encode()

    def _choice(self, index: int, content: dict[str, Any], reason: str | None) -> bytes:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        text = json.dumps([choice], separators=(",", ":"))
        return f'{self._head},"choices":{text}{self._tail}'.encode()


class Texts:
    """The events of a stream's texts: as they come, or with the calls of tools read out of them."""

    def __init__(self, chunks: Chunks, request: Request) -> None:
        self._chunks = chunks
        self._tools = request.tools
        self._answers: dict[int, Answer] = {}

    def events(self, choice: Choice) -> list[bytes]:
        """Of all text that came since the last call."""
        text, index = choice.take(), choice.index
        if self._tools is None or (answer := self._of(choice)) is None:
            return [self._chunks.text(index, text)] if text else []
        deltas = answer.push(text)
        if choice.finish is not None:
            deltas += answer.finish()
        return [self._chunks.delta(index, delta) for delta in deltas]

    def reason(self, index: int, finish: str) -> str:
        """A choice's finish_reason, once its events are made."""
        answer = self._answers.get(index)
        return answer.reason(finish) if answer else finish

    def _of(self, choice: Choice) -> Answer | None:
        answer = self._answers.get(choice.index) or _answer(self._tools, choice)
        if answer is not None:
            self._answers[choice.index] = answer
        return answer


def error_event(error: ApiError) -> bytes:
    """What ends a stream that has begun and can't go on, before [DONE]."""
    return b"data: " + error.body() + b"\n\n"
