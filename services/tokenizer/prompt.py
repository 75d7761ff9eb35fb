"""From a Submit to what an engine is asked: the prompt's ids, and how many tokens may follow."""

from dataclasses import dataclass

import numpy as np

from hostless.v1 import frontend_pb2
from services.fabric._ring import STOP_IDS
from services.tokenizer.encoder import TokenIds
from services.tokenizer.errors import RequestError, invalid
from services.tokenizer.model_text import ModelText, TooLong

MAX_STOPS, MAX_STOP_LENGTH, MAX_STOP_IDS = 16, 1024, STOP_IDS - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What the roomiest live engine of a model can do."""

    context: int
    """Prompt and completion together, tokens."""
    kv_tokens: int
    """Tokens whose KV fits into its pages. The last token of a completion needs none."""
    vocab_size: int

    @property
    def longest_prompt(self) -> int:
        return min(self.context - 1, self.kv_tokens)

    def room(self, prompt_tokens: int) -> int:
        """Most tokens that can follow a prompt."""
        return min(self.context - prompt_tokens, self.kv_tokens - prompt_tokens + 1)


def check(submit: frontend_pb2.Submit) -> None:
    """Raises RequestError for what is wrong whatever the model."""
    sampling = submit.sampling
    if submit.WhichOneof("prompt") is None:
        raise invalid("the request has no prompt", "prompt")
    if sampling.HasField("temperature") and not 0 <= sampling.temperature < float("inf"):
        raise invalid("temperature must be 0 or more", "temperature")
    if sampling.HasField("top_p") and not 0 < sampling.top_p <= 1:
        raise invalid("top_p must be over 0 and at most 1", "top_p")
    if len(submit.stop) > MAX_STOPS:
        raise invalid(f"at most {MAX_STOPS} stop strings are supported, got {len(submit.stop)}", "stop")
    if any(not stop or len(stop) > MAX_STOP_LENGTH for stop in submit.stop):
        raise invalid(f"a stop string must have 1 to {MAX_STOP_LENGTH} characters", "stop")
    if len(sampling.stop_token_ids) > MAX_STOP_IDS:
        raise invalid(f"at most {MAX_STOP_IDS} stop token ids are supported", "stop_token_ids")


def encode(submit: frontend_pb2.Submit, model: ModelText, limits: Limits) -> TokenIds:
    """The prompt's ids, checked against the model. Long for long prompts. Raises RequestError."""
    kind = submit.WhichOneof("prompt")
    if (kind == "text" and not submit.text) or (kind == "token_ids" and not submit.token_ids.ids):
        raise invalid("the prompt is empty; it must have at least one token", "prompt")
    param = "messages" if kind == "chat" else "prompt"
    try:
        if kind == "chat":
            ids = model.encode_chat(submit.chat, submit.model, limits.longest_prompt)
        elif kind == "text":
            ids = model.encode_text(submit.text, limits.longest_prompt)
        else:
            ids = model.begin_ids(_given(submit, limits.vocab_size))
    except TooLong as error:
        raise _too_long(limits, f"at least {error.least}", param) from error
    if not len(ids):  # a template that prints nothing
        raise invalid("the messages make an empty prompt", param)
    if len(ids) > limits.longest_prompt:
        raise _too_long(limits, str(len(ids)), param)
    return ids


def max_tokens(sampling: frontend_pb2.Sampling, prompt_tokens: int, limits: Limits) -> int:
    """Tokens that may follow: what was asked, clamped to the room."""
    room = limits.room(prompt_tokens)
    return min(sampling.max_tokens, room) if sampling.HasField("max_tokens") else room


def stop_ids(sampling: frontend_pb2.Sampling, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """For the ring's record: the model's end token first, whether it counts or not, then what else stops."""
    ends = eos_ids[:1] if sampling.ignore_eos else eos_ids
    together = tuple(dict.fromkeys((*ends, *sampling.stop_token_ids)))
    if len(together) > STOP_IDS:
        raise invalid(
            f"with the model's {len(ends)} end tokens, at most {STOP_IDS - len(ends)} stop token ids fit",
            "stop_token_ids",
        )
    return together


def _too_long(limits: Limits, tokens: str, param: str) -> RequestError:
    return invalid(
        f"this model's maximum context length is {limits.context} tokens, of which a prompt may take "
        f"{limits.longest_prompt}; the prompt has {tokens} tokens. Shorten it.",
        param,
        code="context_length_exceeded",
    )


def _given(submit: frontend_pb2.Submit, vocab_size: int) -> TokenIds:
    ids = np.fromiter(submit.token_ids.ids, dtype=np.uint32, count=len(submit.token_ids.ids))
    wrong = ids[ids >= vocab_size]
    if len(wrong):
        raise invalid(f"token id {wrong[0]} is not in the vocabulary of {vocab_size} ids", "prompt")
    return ids
