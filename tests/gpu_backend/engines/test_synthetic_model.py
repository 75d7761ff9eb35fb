"""A model's size and pace, as the synthetic engine has them."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from services.global_scheduler import _simulator
from services.global_scheduler.simulator.chunks import attention_s
from services.gpu_backend.engine import StepKind
from services.gpu_backend.engines.offline import Offline, Run
from services.gpu_backend.engines.synthetic import Pace, SyntheticEngine, SyntheticSettings
from services.gpu_backend.engines.synthetic_model import DecodeCost, PrefillCost, SyntheticModel, load_synthetic_model

PREFILL = PrefillCost(0.01, 0.02, 1e-5, 2e-5, 1e-8, 1e-7, 100)
DECODE = DecodeCost(0.01, 0.02, 1e-5, 2e-5, 1e-7, 1e-6, 100)
MODEL = SyntheticModel(3, 4, PREFILL, DECODE)


def engine_with_clock(pages: int = 16) -> tuple[SyntheticEngine, list[float]]:
    spent: list[float] = []
    settings = SyntheticSettings((7, 8), 100, model=MODEL, verify=True)
    engine = SyntheticEngine(settings, Pace(lambda: sum(spent), spent.append))
    engine.allocate(pages, 4, 256)
    return engine, spent


def test_pages_are_as_large_as_the_models() -> None:
    engine, _ = engine_with_clock()
    assert engine.kv_pages.shape == (16, 64 * MODEL.token_bytes)
    assert engine.geometry.layers == 3
    assert engine.geometry.block_bytes == 64 * 3 * 2 * 4 * 4


def test_every_layer_has_the_tokens_so_that_a_foreign_layer_is_found_out() -> None:
    engine, _ = engine_with_clock()
    offline = Offline(engine, 2)
    for lane in (0, 1):
        offline.prefill(lane, Run([lane] * 64, 2), 64)
    layer = engine.kv_pages.reshape(16, 3, -1)
    assert (layer[0, 0] == layer[0, 2]).all()
    page, other = offline.block_tables[:, 0]
    layer[page, 2] = layer[other, 2]
    run = Run([0] * 65, 1)
    run.computed = 64
    with pytest.raises(RuntimeError, match="layer 2"):
        offline.step(StepKind.PREFILL, [(0, run, 1)])


def test_steps_take_as_long_as_the_costs_say() -> None:
    engine, spent = engine_with_clock()
    offline = Offline(engine, 2)
    first, second = Run([1] * 150, 5), Run([2] * 50, 5)
    offline.step(StepKind.PREFILL, [(0, first, 150), (1, second, 50)])
    assert spent[-1] == pytest.approx(PREFILL.seconds([(0, 150), (0, 50)]))
    offline.step(StepKind.DECODE, [(0, first, 1), (1, second, 1)])
    assert spent[-1] == pytest.approx(DECODE.seconds(2, 150 + 50 + 2))
    third = Run([3] * 30, 5)
    offline.step(StepKind.PREFILL, [(1, third, 30), (0, first, 1)])  # mixed: the longer of the two
    assert spent[-1] == pytest.approx(max(PREFILL.seconds([(0, 30), (151, 1)]), DECODE.seconds(1, 152)))


def test_attention_is_the_simulators() -> None:
    cost = _simulator.PrefillCost()
    for name, value in asdict(PREFILL).items():
        setattr(cost, name, value)
    for cached, tokens in ((0, 1), (64, 300), (5_000, 17)):
        assert PREFILL.attention_s(cached, tokens) == pytest.approx(attention_s(cost, cached, tokens))


def test_a_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(asdict(MODEL)))
    assert load_synthetic_model(path) == MODEL


@pytest.mark.parametrize(
    "text", ["", "{}", '{"layers": 0, "width": 1, "prefill": {}, "decode": {}}',
             '{"layers": 1, "width": 1, "prefill": {"token_s": 1}, "decode": {}}',
             '{"layers": 1, "width": 1, "prefill": {}, "decode": {"step_s": -1}}'],
)  # fmt: skip
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"model\.json"):
        load_synthetic_model(path)
