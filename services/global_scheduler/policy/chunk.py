"""Which prompts, and how much of each, a prefill engine computes in its next step (D13)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from services.global_scheduler.policy.attention_time import AttentionTime


@dataclass(frozen=True, slots=True)
class Quota:
    """What one step may cost."""

    attention_s: float  # predicted
    tokens: int  # of all chunks: the engine's largest step

    def __post_init__(self) -> None:
        if not self.attention_s > 0 or self.tokens < 1:
            raise ValueError(f"a step of {self.attention_s} s and {self.tokens} tokens gets nothing done")


class Prompt(NamedTuple):
    """The rest of a request's prefill."""

    cached: int  # tokens whose KV is there
    bsz: int  # tokens to compute, at least 1


def next_chunks(prompts: Iterable[Prompt], time: AttentionTime, quota: Quota) -> list[int]:
    """Tokens to compute in this step of the first so many prompts; those behind wait. In the order of arrival each
    gets all its tokens while the quota lasts; the one that overflows it gets the most that fit, or doesn't join; none
    comes after it. The first gets a token whatever it costs, so that a step always gets something done.

    A decode engine doesn't ask: it batches all its requests.
    """
    chunks: list[int] = []
    attention_s, tokens = quota.attention_s, quota.tokens
    for cached, bsz in prompts:
        chunk = _largest(cached, min(bsz, tokens), time, attention_s)
        if not chunk and not chunks:
            chunk = 1
        if chunk:
            chunks.append(chunk)
        if chunk < bsz:
            break
        attention_s -= time.seconds(cached, chunk)
        tokens -= chunk
    return chunks


def _largest(cached: int, bsz: int, time: AttentionTime, seconds: float) -> int:
    """The most tokens, up to bsz, that take no more than so many seconds: time grows with them."""
    if time.seconds(cached, bsz) <= seconds:
        return bsz
    fits, over = 0, bsz
    while over - fits > 1:
        middle = (fits + over) // 2
        if time.seconds(cached, middle) <= seconds:
            fits = middle
        else:
            over = middle
    return fits
