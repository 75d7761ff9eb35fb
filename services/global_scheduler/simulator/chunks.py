"""D13 for the event core: the live chunk choice, with attention times fitted to a profile of the simulated engine."""

from collections.abc import Callable, Sequence

from services.global_scheduler._simulator import PrefillCost
from services.global_scheduler.policy.attention_time import AttentionTime, Sample, fit
from services.global_scheduler.policy.chunk import Prompt, Quota, next_chunks

Choose = Callable[[Sequence[int], Sequence[int]], list[int]]

CACHED = (2_048, 8_192, 32_768, 65_536)
TOKENS = (64, 256, 1_024, 4_096)


def attention_s(cost: PrefillCost, cached: int, tokens: int) -> float:
    """What the simulated engine takes; the event core computes the same."""
    context = cached + tokens / 2
    return tokens * (cost.pair_s * context + cost.selected_s * min(context, cost.selected))


def profile(cost: PrefillCost) -> AttentionTime:
    """As offline profiling of a real engine would."""
    grid = ((cached, tokens) for cached in CACHED for tokens in TOKENS)
    return fit([Sample(cached, tokens, attention_s(cost, cached, tokens)) for cached, tokens in grid])


def chunk_chooser(cost: PrefillCost, quota: Quota) -> Choose:
    """Takes cached and wanted tokens of an engine's waiting prompts, answers how much of the first ones to compute."""
    time = profile(cost)

    def choose(cached: Sequence[int], wanted: Sequence[int]) -> list[int]:
        return next_chunks(map(Prompt, cached, wanted), time, quota)

    return choose
