"""Qwen2, Qwen3 and Phi-3 on the device: float32 tokens are HuggingFace's, bfloat16 logits within a hundredth."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

import tests.gpu.engine.hardware  # noqa: F401
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.host_driven import HostDrivenGraphEngine
from services.gpu_backend.engines.cuda.settings import CudaSettings, Singles
from services.gpu_backend.models.variants import VARIANTS
from tests.gpu.engine import huggingface
from tests.gpu.engine.small_models import random_model, small_config
from tests.gpu.engine.test_graphs import CONTEXT, PAGES, check_logits
from tests.gpu.engine.test_graphs import VARIANTS as WAYS
from tests.gpu.engine.test_tokens import CASES, LANES, STEP_TOKENS, drive, model_of, prompts_of, reference
from tests.gpu.engine.test_tokens import PAGES as MANY_PAGES

pytestmark = pytest.mark.gpu
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2": {"heads": 7, "kv_heads": 1, "hidden": 448},  # groups of seven, as in Qwen2.5-0.5B and 7B
    "qwen3": {"head_dim": 128},  # wider than hidden size / heads, as in Qwen3-0.6B
    "phi3": {},
}
assert SHAPES.keys() == VARIANTS.keys() - {"llama"}


@pytest.mark.parametrize("singles", get_args(Singles))
@pytest.mark.parametrize("architecture", SHAPES)
def test_float32_tokens(architecture: str, singles: Singles) -> None:
    """Prompts in chunks that share steps; then one after the other, with decodes behind them."""
    config = small_config(architecture=architecture, **SHAPES[architecture])
    made = reference(config)
    settings = CudaSettings(singles=singles, prefill_sizes=(16, 64, 128, STEP_TOKENS), decode_sizes=(1, 4, 16, LANES))
    ours = HostDrivenGraphEngine(CudaGraphEngine(model_of(made, config, "cuda"), "r", settings), config.max_context)
    ours.allocate(MANY_PAGES, LANES, STEP_TOKENS)
    for case in ("one token", "page edges", "8k and short ones", "32 at once, small chunks"):
        lengths, count, chunk = CASES[case]
        prompts = prompts_of(lengths, config.vocab, seed=len(case))
        expected = [huggingface.greedy(made, prompt, count) for prompt in prompts]
        assert drive(ours, prompts, count, chunk, seed=2) == expected, case
        assert drive(ours, prompts, count, min(chunk, STEP_TOKENS - LANES), seed=3, mixed=True) == expected, case
    ours.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("architecture", SHAPES)
def test_bfloat16_logits(architecture: str, way: str) -> None:
    shape = {"hidden": 1024, "intermediate": 3072, "head_dim": 128, **SHAPES[architecture]}
    model = random_model(small_config(architecture=architecture, **shape), torch.bfloat16, "cuda")
    graphs = CudaGraphEngine(model, "t", replace(WAYS[way], prefill_sizes=(64, STEP_TOKENS), decode_sizes=(8, LANES)))
    driven = HostDrivenGraphEngine(graphs, CONTEXT)
    driven.allocate(PAGES, LANES, STEP_TOKENS)
    for count in (1, 8, 29):
        check_logits(graphs, driven, model, count)
    driven.close()
