"""Bodies of /v1/chat/completions and /v1/completions, checked and made into one frozen, typed request."""

from dataclasses import dataclass
from typing import Any

from services.gateway.errors import invalid, not_supported
from services.gateway.fields import Fields, check_unicode
from services.gateway.messages import read_messages
from services.gateway.prompts import UINT32, ChatPrompt, Prompt, read_prompts, size_of, token_ids
from services.gateway.template_variables import read_variables
from services.gateway.tools import Tools, read_tools
from services.gateway.unsupported import refuse_unsupported

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 7
MAX_NAME_CHARS = 256
DEFAULT_COMPLETION_TOKENS = 16
"""What OpenAI gives to /v1/completions that names no max_tokens; a chat gets what is left of the context."""
MAX_COPIES_BYTES = 32 << 20
"""Of all choices' prompts together: each choice travels with its own copy."""
LEAST_TOP_P = 1e-6
"""Smaller values would be 0, which is not in (0, 1], once they are 32 bits wide."""


@dataclass(frozen=True)
class Sampling:
    """As hostless.v1.Sampling has it: None is what the model's makers say, and top_k 0 is off."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    seed: int | None
    max_tokens: int | None
    ignore_eos: bool
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """One HTTP request: `prompts` times `n` choices, choice i belonging to prompt i // n."""

    chat: bool
    model: str
    prompts: tuple[Prompt, ...]
    n: int
    sampling: Sampling
    stop: tuple[str, ...]
    echo: bool
    stream: bool
    include_usage: bool

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def tools(self) -> Tools | None:
        """What the answer may call."""
        prompt = self.prompts[0]
        return prompt.tools if isinstance(prompt, ChatPrompt) else None


def read_chat(values: dict[str, Any], max_choices: int) -> Request:
    """Raises ApiError(400)."""
    prompt = ChatPrompt(read_messages(values.get("messages")), read_tools(values), read_variables(values))
    return _read(values, True, (prompt,), max_choices)


def read_completion(values: dict[str, Any], max_choices: int) -> Request:
    """Raises ApiError(400)."""
    return _read(values, False, read_prompts(values.get("prompt"), max_choices), max_choices)


def _read(values: dict[str, Any], chat: bool, prompts: tuple[Prompt, ...], max_choices: int) -> Request:
    fields = Fields(values)
    model = fields.text("model", MAX_NAME_CHARS)
    if not model:
        raise invalid("model", "model is missing: the id of a model that /v1/models lists")
    refuse_unsupported(values, chat)
    n = _choices(fields, prompts, max_choices)
    stream = fields.boolean("stream")
    fields.text("user", MAX_NAME_CHARS)
    return Request(
        chat=chat,
        model=model,
        prompts=prompts,
        n=n,
        sampling=_sampling(fields, chat),
        stop=_stop(fields.get("stop")),
        echo=not chat and fields.boolean("echo"),
        stream=stream,
        include_usage=_include_usage(fields, stream),
    )


def _choices(fields: Fields, prompts: tuple[Prompt, ...], max_choices: int) -> int:
    n = fields.integer("n", 1, max_choices) or 1
    choices = n * len(prompts)
    if choices > max_choices:
        text = (
            f"n = {n} for {len(prompts)} prompts makes {choices} choices; at most {max_choices} a request are accepted"
        )
        raise invalid("n", text)
    if n > 1 and n * sum(map(size_of, prompts)) > MAX_COPIES_BYTES:
        raise invalid("n", f"n = {n} is too much for prompts as long as these; send fewer or shorter ones")
    best_of = fields.integer("best_of", 1, UINT32, clamp=True)
    if best_of is not None and best_of < n:
        raise invalid("best_of", f"best_of must be at least n ({n}), not {best_of}")
    if best_of is not None and best_of > n:
        raise not_supported("best_of", f"best_of above n is not supported yet; omit it or send {n}")
    return n


def _sampling(fields: Fields, chat: bool) -> Sampling:
    top_k = fields.integer("top_k", -1, UINT32, clamp=True)
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    top_p = fields.number("top_p", 0, 1)
    if top_p == 0:
        raise invalid("top_p", "top_p must be above 0 and at most 1; for greedy decoding send temperature 0")
    return Sampling(
        temperature=fields.number("temperature", 0, 2),
        top_p=None if top_p is None else max(top_p, LEAST_TOP_P),
        top_k=None if top_k is None else max(top_k, 0),
        seed=None if seed is None else seed % 2**64,
        max_tokens=_max_tokens(fields, None if chat else DEFAULT_COMPLETION_TOKENS),
        ignore_eos=fields.boolean("ignore_eos"),
        stop_token_ids=_stop_token_ids(fields.get("stop_token_ids")),
    )


def _max_tokens(fields: Fields, default: int | None) -> int | None:
    old = fields.integer("max_tokens", 1, UINT32, clamp=True)
    new = fields.integer("max_completion_tokens", 1, UINT32, clamp=True)
    if old is not None and new is not None and old != new:
        text = f"max_tokens ({old}) and max_completion_tokens ({new}) are one setting; send only one of them"
        raise invalid("max_tokens", text)
    given = new if old is None else old
    return default if given is None else given


def _include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.nested("stream_options")
    if options is None:
        return False
    if not stream:
        raise invalid("stream_options", "stream_options goes only with stream: true")
    if options.boolean("continuous_usage_stats"):
        raise not_supported("stream_options.continuous_usage_stats", "continuous_usage_stats is not supported yet")
    return options.boolean("include_usage")


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise invalid("stop", f"stop must be a string or an array of up to {MAX_STOPS} strings")
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"stop holds {len(stops)} strings; at most {MAX_STOPS} are accepted")
    if "" in stops:
        raise invalid("stop", "stop must not hold an empty string: it would stop before the first token")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise invalid("stop", f"stop strings have at most {MAX_STOP_CHARS} characters each")
    return tuple(check_unicode("stop", stop) for stop in stops)


def _stop_token_ids(value: Any) -> tuple[int, ...]:
    if value is None or value == []:
        return ()
    if not isinstance(value, list) or len(value) > MAX_STOP_IDS:
        raise invalid("stop_token_ids", f"stop_token_ids must be an array of up to {MAX_STOP_IDS} token ids")
    return token_ids("stop_token_ids", value)
