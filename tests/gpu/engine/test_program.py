"""The step's kernels without a GPU: Triton's interpreter against the CPU engine. Set TRITON_INTERPRET=1."""

import os
from typing import Any

import numpy as np
import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("NOT RUN: set TRITON_INTERPRET=1 to run the kernels on the CPU", allow_module_level=True)
pytest.importorskip("triton", reason="NOT RUN: triton is not installed")

from services.gpu_backend.engines.cuda.settings import Singles
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.models.registry import LoadedModel
from tests.gpu.engine.interpreted_engine import InterpretedEngine
from tests.gpu.engine.small_models import Driver, lane_pages, random_model, small_config

SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {"heads": 4, "kv_heads": 2, "hidden": 128},
    "groups of three": {"heads": 3, "kv_heads": 1, "hidden": 96},
    "qwen2": {"architecture": "qwen2", "heads": 4, "kv_heads": 2, "hidden": 96},
    "qwen3": {"architecture": "qwen3", "heads": 3, "kv_heads": 1, "hidden": 128},
}


@pytest.mark.slow  # the interpreter takes some 20 s a shape
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mixed", [None, "tiles", "beside"])
def test_tokens_equal_those_of_the_cpu_engine(shape: str, mixed: Singles | None) -> None:
    config = small_config(layers=2, intermediate=192, head_dim=32, vocab=500, **SHAPES[shape])
    model = random_model(config, torch.float32, "cpu")
    rng = np.random.default_rng(1)
    prompts = [[int(token) for token in rng.integers(0, config.vocab, length)] for length in (1, 130, 64, 37)]
    interpreted = InterpretedEngine(model, 1024, mixed or "tiles")
    found = []
    engines: list[Any] = [TorchEngine(LoadedModel(model, "x"), TorchSettings()), interpreted]
    for engine in engines:
        engine.allocate(40, 5, 128)
        wide = lane_pages(prompts, 6)
        driver = Driver(engine, lanes=5, pages=40, lane_pages=wide, step_tokens=100, seed=3)
        mixes = mixed is not None and engine is interpreted
        found.append(driver.generate_mixed(prompts, 6, 50) if mixes else driver.generate(prompts, 6, 50))
    assert found[0] == found[1]
