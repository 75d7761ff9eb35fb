"""Logits of the paged engine against transformers, on tiny random models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.gpu_backend.engine import StepKind, StepView
from services.gpu_backend.engines import torch_engine
from services.gpu_backend.engines.offline import Offline, Run
from services.gpu_backend.engines.sampling import sample
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.models.registry import LoadedModel, load
from services.gpu_backend.models.variants import VARIANTS

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one KV head, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "every head its own KV": {"num_key_value_heads": 4},
    "wide heads": {"head_dim": 32},
    "llama3 RoPE": {"rope_parameters": LLAMA3_ROPE, "num_hidden_layers": 4},
    "qwen2": {"architecture": "qwen2"},
    "qwen2, groups of 3, tied": {
        "architecture": "qwen2", "num_attention_heads": 6, "hidden_size": 96, "tie_word_embeddings": True,
    },
    "qwen3": {"architecture": "qwen3"},
    "qwen3, every head its own KV, tied": {
        "architecture": "qwen3", "num_key_value_heads": 4, "head_dim": 16, "tie_word_embeddings": True,
    },
    "qwen3, llama3 RoPE": {"architecture": "qwen3", "rope_parameters": LLAMA3_ROPE, "num_hidden_layers": 4},
    "phi3": {"architecture": "phi3"},
    "phi3, one KV head, tied": {"architecture": "phi3", "num_key_value_heads": 1, "tie_word_embeddings": True},
}  # fmt: skip


Steps = list[list[tuple[int, int]]]


@pytest.fixture
def paged_logits(monkeypatch: pytest.MonkeyPatch) -> Callable[[LoadedModel, list[list[int]], Steps], Any]:
    """Logits after each prompt's last token, computed by steps of (prompt, new tokens)."""

    def run(loaded: LoadedModel, prompts: list[list[int]], steps: Steps) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}

        def record(logits: torch.Tensor, view: StepView, sequences: Any) -> Any:
            lanes = view.sequences["lane"][sequences].tolist()
            found.update(zip(lanes, logits, strict=True))
            return sample(logits, view, sequences)

        monkeypatch.setattr(torch_engine, "sample", record)
        engine = TorchEngine(loaded, TorchSettings())
        engine.allocate(len(prompts) * 6, len(prompts), 512)
        offline = Offline(engine, len(prompts), np.random.default_rng(3).permutation(len(prompts) * 6))
        runs = [Run(prompt, 1) for prompt in prompts]
        for step in steps:
            offline.step(StepKind.PREFILL, [(i, runs[i], count) for i, count in step])
        return [found[i] for i in range(len(prompts))]

    return run


def reference_logits(model: Any, prompts: list[list[int]]) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0, -1].float() for prompt in prompts]


def random_prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(11)
    return [rng.integers(0, 200, n).tolist() for n in lengths]


def one_by_one(prompts: list[list[int]], chunk: int) -> list[list[tuple[int, int]]]:
    return [
        [(i, min(chunk, len(prompt) - begin))]
        for i, prompt in enumerate(prompts)
        for begin in range(0, len(prompt), chunk)
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [1000, 37])
def test_float32_logits_equal_transformers(
    case: str, chunk: int, make_model: Callable[..., Any], paged_logits: Any, tmp_path: Path
) -> None:
    model = make_model(**CASES[case])
    model.save_pretrained(tmp_path)
    prompts = random_prompts(1, 64, 65, 200)
    found = paged_logits(load(tmp_path), prompts, one_by_one(prompts, chunk))
    for ours, theirs in zip(found, reference_logits(model, prompts), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", VARIANTS)
def test_bfloat16_logits_are_as_near_as_bfloat16_is(
    architecture: str, make_model: Any, paged_logits: Any, tmp_path: Path
) -> None:
    make_model(architecture, initializer_range=0.05).to(torch.bfloat16).save_pretrained(tmp_path)
    prompts = random_prompts(5, 64, 150)
    found = paged_logits(load(tmp_path, "bfloat16"), prompts, one_by_one(prompts, 50))
    exact, rounded = (
        reference_logits(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype), prompts)
        for dtype in (torch.float32, torch.bfloat16)
    )
    for ours, theirs, float32 in zip(found, rounded, exact, strict=True):
        assert (ours - theirs).norm() < 1.5e-2 * theirs.norm()  # both are rounded
        assert (ours - float32).norm() < 1e-2 * float32.norm()


@pytest.mark.parametrize("architecture", VARIANTS)
def test_decoding_and_prefilling_share_a_step(
    architecture: str, make_model: Any, paged_logits: Any, tmp_path: Path
) -> None:
    """Each step moves some prompts by one token and others by many; lengths cross pages."""
    model = make_model(architecture)
    model.save_pretrained(tmp_path)
    prompts = random_prompts(70, 140, 66, 129, 3, 200)
    left = [len(prompt) for prompt in prompts]
    rng, steps = np.random.default_rng(2), []
    while any(left):
        step = []
        for i in rng.permutation(len(prompts)).tolist():
            count = min(left[i], int(rng.choice([0, 1, 1, 9, 64])))
            if count:
                step.append((i, count))
                left[i] -= count
        steps.append(step)
    found = paged_logits(load(tmp_path), prompts, [step for step in steps if step])
    for ours, theirs in zip(found, reference_logits(model, prompts), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", VARIANTS)
def test_greedy_decoding_of_sixteen_equals_transformers(architecture: str, make_model: Any, tmp_path: Path) -> None:
    model = make_model(architecture)
    model.save_pretrained(tmp_path)
    engine = TorchEngine(load(tmp_path), TorchSettings())
    engine.allocate(16 * 5, 16, 512)
    prompts = random_prompts(*(1 + 15 * i for i in range(16)))
    runs = [Run(prompt, 40) for prompt in prompts]
    offline = Offline(engine, 16, np.random.default_rng(1).permutation(80))
    for lane, run in enumerate(runs):
        offline.prefill(lane, run, 33)
    for _ in offline.decode(list(enumerate(runs))):
        pass
    for prompt, run in zip(prompts, runs, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *run.output]])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == run.output
