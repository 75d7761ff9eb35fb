"""Costs from shapes: figures that are published, and the profile that D13 works with."""

import pytest

from services.global_scheduler.simulator.chunks import attention_s, profile
from services.global_scheduler.simulator.costs import kv_capacity_tokens, prefill_cost
from services.global_scheduler.simulator.hardware import load_hardware
from services.global_scheduler.simulator.shapes import ModelShape, load_model


@pytest.mark.parametrize(
    ("name", "total", "active"), [("ds-660b", 671, 37), ("ds-27b", 27, 4.4), ("qwen2.5-32b", 32, 32)]
)
def test_parameters_are_the_published_ones(name: str, total: float, active: float) -> None:
    model = load_model(name)
    assert (model.engine_parameters + model.expert_parameters) / 1e9 == pytest.approx(total, rel=0.03)
    assert (model.engine_parameters + model.active_expert_parameters) / 1e9 == pytest.approx(active, rel=0.03)


def test_cache_to_compute_ratio_is_about_the_papers() -> None:
    """At the trace's means: about 22 GB/PFLOP for DeepSeek-V3.2, 117 to 267 for Qwen2.5-32B."""
    found = {}
    for name in ("ds-660b", "qwen2.5-32b"):
        model = load_model(name)
        found[name] = 32_292 * model.kv_token_bytes / 1e9 / (flops(model, 32_292, 429) / 1e15)
    assert found["ds-660b"] == pytest.approx(22, rel=0.2)
    assert 117 <= found["qwen2.5-32b"] <= 267


def flops(model: ModelShape, cached: int, tokens: int) -> float:
    """Arithmetic of a prefill of `tokens` after `cached`."""
    context = cached + tokens / 2
    pair = model.attention.pair_flops * context
    selected = model.attention.selected_flops * min(context, model.attention.selected)
    linear = 2 * (model.engine_parameters + model.active_expert_parameters)
    return tokens * (linear + model.layers * (pair + selected))


def test_profile_predicts_attention() -> None:
    cost = prefill_cost(load_model("ds-660b"), load_hardware(), 16)
    time = profile(cost)
    for cached, tokens in ((4_096, 300), (20_000, 100), (50_000, 2_000)):
        assert time.seconds(cached, tokens) == pytest.approx(attention_s(cost, cached, tokens), rel=0.02)


def test_weights_that_do_not_fit_are_said_to() -> None:
    with pytest.raises(ValueError, match="use more nodes a group"):
        kv_capacity_tokens(load_model("ds-660b"), load_hardware(), 8)


def test_unknown_names_are_said_to_be() -> None:
    with pytest.raises(ValueError, match="there are: ds-27b"):
        load_model("gpt")
    with pytest.raises(ValueError, match="there is: h200, hopper"):
        load_hardware("tpu")
