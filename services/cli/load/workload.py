"""What is asked of the server, and when. Pure: the same options give the same requests."""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school")
FIRST_ID = 100  # below it vocabularies keep control tokens


@dataclass(frozen=True)
class Workload:
    """`rate` > 0: open loop, Poisson arrivals at `rate` a second. Else closed loop: `concurrency` at a time."""

    model: str
    endpoint: str = "completions"  # prompts of token ids; chat: of words
    requests: int = 100
    concurrency: int = 16
    rate: float = 0.0
    duration_s: float = 0.0  # closed loop: no new request after it; 0: no limit
    prompt_tokens: int = 128
    shared_prefix: int = 0  # tokens (chat: words) that all prompts begin with, whatever the seed; besides prompt_tokens
    output_tokens: int = 128
    spread: float = 0.0  # sigma of log-normal lengths; 0: all the same
    vocab: int = 32_000
    ignore_eos: bool = True
    temperature: float = 0.0
    seed: int = 0

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"


@dataclass(frozen=True)
class Request:
    at_s: float  # after the start; open loop only
    body: bytes
    output_tokens: int  # asked for


def requests(load: Workload) -> Iterator[Request]:
    """The requests in order, made as they are asked for."""
    draw = random.Random(load.seed)
    prefix = _words(random.Random(0), load, load.shared_prefix)
    at_s = 0.0
    for _ in range(load.requests):
        if load.rate:
            at_s += draw.expovariate(load.rate)
        wanted = _length(draw, load.output_tokens, load.spread)
        body: dict[str, Any] = {
            "model": load.model,
            "max_tokens": wanted,
            "temperature": load.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if load.ignore_eos:
            body["ignore_eos"] = True
        words = [*prefix, *_words(draw, load, _length(draw, load.prompt_tokens, load.spread))]
        if load.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": " ".join(map(str, words))}]
        else:
            body["prompt"] = words
        yield Request(at_s, json.dumps(body, separators=(",", ":")).encode(), wanted)


def _words(draw: random.Random, load: Workload, count: int) -> list[str] | list[int]:
    if load.endpoint == "chat":
        return draw.choices(WORDS, k=count)
    return [draw.randrange(FIRST_ID, load.vocab) for _ in range(count)]


def _length(draw: random.Random, mean: int, sigma: float) -> int:
    """Log-normal with the given mean, cut at eight times it."""
    if not sigma:
        return mean
    return max(1, min(8 * mean, round(draw.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))
