"""A given model as far as the synthetic engine stands for it: how large its KV is and how long its steps take.

Costs have the form and the names of the simulator's (simulator/costs.py), so a live run and its prediction can share
their numbers.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

C = TypeVar("C")


@dataclass(frozen=True)
class PrefillCost:
    """step_s whatever the batch; weight_s once, hidden by arithmetic when there is more of that; group_token_s and
    engine_token_s a token; pair_s a (query, context) pair; selected_s one of those that sparse attention selects, of
    which each query has `selected` at most."""

    step_s: float = 0.0
    weight_s: float = 0.0
    group_token_s: float = 0.0
    engine_token_s: float = 0.0
    pair_s: float = 0.0
    selected_s: float = 0.0
    selected: float = 0.0

    def attention_s(self, cached: int, tokens: int) -> float:
        context = cached + tokens / 2
        return tokens * (self.pair_s * context + self.selected_s * min(context, self.selected))

    def seconds(self, chunks: list[tuple[int, int]]) -> float:
        """Of a step that computes these: (positions before, new tokens) each."""
        tokens = sum(count for _, count in chunks)
        work = tokens * (self.group_token_s + self.engine_token_s) + sum(self.attention_s(*chunk) for chunk in chunks)
        return self.step_s + max(self.weight_s, work)


@dataclass(frozen=True)
class DecodeCost:
    """As PrefillCost's; context_s is for reading a token of context."""

    step_s: float = 0.0
    weight_s: float = 0.0
    group_token_s: float = 0.0
    engine_token_s: float = 0.0
    context_s: float = 0.0
    selected_s: float = 0.0
    selected: float = 0.0

    def seconds(self, batch: int, context: int) -> float:
        """Of a step of so many sequences, which have so many tokens together."""
        own = batch * self.engine_token_s + context * self.context_s
        own += min(context, batch * self.selected) * self.selected_s
        return self.step_s + max(self.weight_s, batch * self.group_token_s) + own


@dataclass(frozen=True)
class SyntheticModel:
    """A token's K, and its V, have `width` words of 4 bytes in each layer."""

    layers: int
    width: int
    prefill: PrefillCost
    decode: DecodeCost

    def __post_init__(self) -> None:
        for name in ("layers", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for cost in (self.prefill, self.decode):
            for name, value in vars(cost).items():
                if not value >= 0:
                    raise ValueError(f"{name} is {value}; it must not be negative")

    @property
    def token_bytes(self) -> int:
        """KV of a token, all layers."""
        return self.layers * 2 * self.width * 4


def load_synthetic_model(path: Path) -> SyntheticModel:
    """From JSON: {"layers": n, "width": n, "prefill": costs, "decode": costs}. Raises ValueError, naming the file."""
    try:
        parts = json.loads(path.read_text())
        return SyntheticModel(
            parts["layers"], parts["width"], _cost(PrefillCost, parts["prefill"]), _cost(DecodeCost, parts["decode"])
        )
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no synthetic model: {error!r}") from None


def _cost(kind: type[C], values: dict[str, Any]) -> C:
    unknown = values.keys() - {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: not known to {kind.__name__}")
    return kind(**{name: float(value) for name, value in values.items()})
