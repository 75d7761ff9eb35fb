"""Draws against a slow reference that follows the contract word by word."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_backend.engine import STEP_SEQUENCE, EngineError, StepKind, StepView
from services.gpu_backend.engines.sampling import draw, greedy, sample


def reference(logits: list[float], temperature: float, top_p: float, top_k: int, uniform: float) -> tuple[int, float]:
    """The token, and how far `uniform` is from the next border (where rounding may decide)."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[: top_k or len(order)]
    weights = [math.exp((logits[i] - max(logits)) / temperature) for i in order]
    mass, kept, nearest = sum(weights), 0, math.inf
    if top_p < 1:
        total = 0.0
        while kept < len(order) and total < top_p * mass:
            total += weights[kept]
            kept += 1
            nearest = min(nearest, abs(total - top_p * mass) / mass)
        order, weights = order[: max(kept, 1)], weights[: max(kept, 1)]
    target, total = uniform * sum(weights), 0.0
    for i, weight in zip(order, weights, strict=True):
        total += weight
        nearest = min(nearest, abs(total - target) / mass) if i != order[-1] else nearest
        if total > target:
            return i, nearest
    return order[-1], nearest


parameters = st.tuples(
    st.floats(0.05, 5),
    st.floats(0.01, 1),
    st.one_of(st.just(0), st.integers(1, 700)),
    st.floats(0, 1, exclude_max=True),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 600), st.integers(0, 2**32 - 1), st.booleans(), parameters)
def test_draw_equals_the_reference(
    vocab: int, seed: int, ties: bool, parameters: tuple[float, float, int, float]
) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, vocab).astype(np.float32)
    if ties:
        logits = np.round(logits)
    expected, margin = reference(logits.tolist(), *parameters)
    if margin > 1e-9:
        assert draw(torch.from_numpy(logits), *parameters) == expected


def test_flat_logits_are_drawn_in_order_of_id() -> None:
    logits = torch.zeros(1000)
    assert [draw(logits, 1.0, 1.0, 0, u / 1000 + 0.0005) for u in range(1000)] == list(range(1000))


def test_uniform_just_below_one_stays_inside() -> None:
    last = float(np.nextafter(np.float32(1), np.float32(0)))
    assert draw(torch.zeros(5000), 1.0, 1.0, 0, last) == 4999
    assert draw(torch.zeros(5000), 1.0, 1.0, 3, last) == 2
    assert draw(torch.zeros(5000), 1.0, 0.5, 0, last) == 2499


def test_frequencies_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    grid = (np.arange(4000) + 0.5) / 4000
    counts = np.bincount([draw(logits, 0.7, 1.0, 0, float(u)) for u in grid], minlength=4)
    expected = torch.softmax(logits / 0.7, -1).numpy()
    assert np.abs(counts / 4000 - expected).max() < 1e-3


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert greedy(torch.tensor([[1.0, 5.0, 5.0, 2.0], [3.0, 3.0, 3.0, 3.0]])).tolist() == [1, 0]


def view_of(rows: int) -> StepView:
    sequences = np.zeros(rows, STEP_SEQUENCE)
    sequences["top_p"], sequences["slot"] = 1.0, np.arange(rows) + 40
    empty = np.zeros(rows, np.uint32)
    return StepView(StepKind.DECODE, rows, rows, sequences, empty, empty[:, None], empty)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(0, 2, (16, 3000)).astype(np.float32))
    view = view_of(16)
    view.sequences["temperature"] = rng.choice([0, 0.5, 1.3], 16)
    view.sequences["top_p"], view.sequences["top_k"] = rng.uniform(0.3, 1, 16), rng.integers(0, 50, 16)
    view.sequences["uniform"] = rng.uniform(0, 1, 16)
    together = sample(logits, view, np.arange(16))
    alone = [int(sample(logits[i : i + 1], view, np.array([i]))[0]) for i in range(16)]
    assert together.tolist() == alone


def test_logits_that_are_not_finite_name_the_slot() -> None:
    logits = torch.zeros(3, 10)
    logits[1, 4] = math.nan
    with pytest.raises(EngineError, match="slot 41"):
        sample(logits, view_of(3), np.arange(3))


@pytest.mark.parametrize(("field", "value"), [("temperature", -1), ("top_p", 0), ("top_p", 1.5), ("uniform", 1)])
def test_parameters_out_of_range_are_named(field: str, value: float) -> None:
    view = view_of(2)
    view.sequences["temperature"][1] = 1
    view.sequences[field][1] = value
    with pytest.raises(EngineError, match=f"slot 41.*{field} {float(value)}"):
        sample(torch.zeros(2, 10), view, np.arange(2))
