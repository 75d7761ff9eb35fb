"""From logits to tokens (B9). Every row depends on itself alone, so neighbours change nothing.

A row's draw is a pure function of (logits, temperature, top_p, top_k, uniform):
order by logit, highest first, equal ones by id; weigh by softmax(logits / temperature); keep the first
top_k (0: all); of these keep the fewest whose mass reaches top_p; then the first token whose cumulated
mass exceeds uniform times the mass that was kept. Weights are float64, so that 100,000 of them add up.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from services.gpu_backend.engine import EngineError, StepView

_HEAD = 256
"""Tokens that are ordered first: enough for nearly every draw, and much faster than the vocabulary."""


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """float32[R, vocab] -> int64[R]; of equal ones the lowest id."""
    return logits.argmax(dim=-1)


def draw(logits: torch.Tensor, temperature: float, top_p: float, top_k: int, uniform: float) -> int:
    """float32[vocab] -> a token. temperature > 0, top_p in (0, 1], uniform in [0, 1)."""
    vocab = len(logits)
    limit = min(top_k, vocab) if top_k else vocab
    head = min(limit, _HEAD)
    threshold = logits.topk(head).values[-1]
    candidates = torch.nonzero(logits >= threshold).flatten()
    weights = ((logits.double() - logits.max()) / temperature).exp()
    total = weights.sum().item() if limit == vocab else None
    token = _draw_from(logits, weights, candidates, limit, total, top_p, uniform)
    if token is None:
        token = _draw_from(logits, weights, torch.arange(vocab), limit, total, top_p, uniform)
    assert token is not None, "the whole vocabulary always holds the drawn token"
    return token


def _draw_from(
    logits: torch.Tensor,
    weights: torch.Tensor,
    candidates: torch.Tensor,
    limit: int,
    total: float | None,
    top_p: float,
    uniform: float,
) -> int | None:
    """The draw, if it falls among `candidates`: the highest tokens, in order of id. Else None.

    total is the mass of all `limit` tokens, None: they are among the candidates, if those suffice.
    """
    ordered = candidates[logits[candidates].sort(descending=True, stable=True).indices][:limit]
    complete = len(ordered) == limit
    if total is None and not complete:
        return None
    cumulated = weights[ordered].cumsum(0)
    mass = cumulated[-1].item() if total is None else total
    kept = mass
    if top_p < 1.0:
        last = int(torch.searchsorted(cumulated, top_p * mass))
        if last >= len(ordered):
            if not complete:
                return None
            last = len(ordered) - 1
        ordered, cumulated = ordered[: last + 1], cumulated[: last + 1]
        kept = cumulated[-1].item()
        complete = True
    drawn = int(torch.searchsorted(cumulated, uniform * kept, right=True))
    if drawn < len(ordered):
        return int(ordered[drawn])
    return int(ordered[-1]) if complete else None


def sample(logits: torch.Tensor, view: StepView, sequences: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Row i of logits belongs to view.sequences[sequences[i]]; returns u32[len(sequences)].

    Raises EngineError if a row's logits aren't finite or its parameters are out of range.
    """
    rows = view.sequences[sequences]
    tokens = greedy(logits)
    highest = logits.gather(1, tokens[:, None]).flatten()
    finite = torch.isfinite(highest)
    if not bool(finite.all()):
        slot = rows["slot"][int(torch.nonzero(~finite)[0])]
        raise EngineError(f"slot {slot}: the model's logits are not finite; its weights or its KV are damaged")
    chosen = tokens.numpy().astype(np.uint32)
    for i in np.flatnonzero(rows["temperature"] != 0):
        temperature, top_p, uniform = (float(rows[name][i]) for name in ("temperature", "top_p", "uniform"))
        if not (temperature > 0 and 0 < top_p <= 1 and 0 <= uniform < 1):
            raise EngineError(
                f"slot {rows['slot'][i]}: temperature {temperature}, top_p {top_p}, uniform {uniform}: "
                "out of range (>= 0; (0, 1]; [0, 1))"
            )
        chosen[i] = draw(logits[i], temperature, top_p, int(rows["top_k"][i]), uniform)
    return chosen
