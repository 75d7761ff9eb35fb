"""float32: the graphs' greedy tokens equal the CPU engine's and HuggingFace's on the device."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

import tests.gpu.engine.hardware  # noqa: F401
from services.gpu_backend.engine import Engine
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.host_driven import HostDrivenGraphEngine
from services.gpu_backend.engines.cuda.settings import CudaSettings, Singles
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.models.config import ModelConfig
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.models.registry import LoadedModel, load
from tests.gpu.engine import huggingface
from tests.gpu.engine.small_models import Driver, TensorSource, lane_pages, small_config

pytestmark = pytest.mark.gpu
LANES, STEP_TOKENS, PAGES = 32, 512, 1200


def reference(config: ModelConfig) -> PreTrainedModel:
    """HuggingFace's model with random weights, in float32 on the device."""
    torch.manual_seed(1)
    return huggingface.model_of(config, initializer_range=0.06).to("cuda")


def model_of(made: PreTrainedModel, config: ModelConfig, device: str) -> Llama:
    tensors = {name: tensor.cpu() for name, tensor in made.state_dict().items()}
    return Llama(TensorSource(config, tensors), torch.float32, torch.device(device), lambda name, elements: None)


def drive(
    engine: Engine, prompts: list[list[int]], count: int, chunk: int, seed: int, *, mixed: bool = False
) -> list[list[int]]:
    wide = lane_pages(prompts, count)
    lanes = min(LANES, PAGES // wide)
    driver = Driver(engine, lanes=lanes, pages=PAGES, lane_pages=wide, step_tokens=STEP_TOKENS, seed=seed)
    return driver.generate_mixed(prompts, count, chunk) if mixed else driver.generate(prompts, count, chunk)


@pytest.fixture(scope="module")
def random_models() -> Iterator[tuple[PreTrainedModel, HostDrivenGraphEngine, TorchEngine]]:
    config = small_config()
    made = reference(config)
    settings = CudaSettings(prefill_sizes=(16, 128, STEP_TOKENS), decode_sizes=(1, 4, 16, LANES))
    ours = HostDrivenGraphEngine(CudaGraphEngine(model_of(made, config, "cuda"), "r", settings), config.max_context)
    ours.allocate(PAGES, LANES, STEP_TOKENS)
    cpu = TorchEngine(LoadedModel(model_of(made, config, "cpu"), "r"), TorchSettings())
    cpu.allocate(PAGES, LANES, STEP_TOKENS)
    yield made, ours, cpu
    ours.close()


def prompts_of(lengths: list[int], vocab: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[int(token) for token in rng.integers(0, vocab, length)] for length in lengths]


CASES = {
    "one short": ([5], 24, 512),
    "one token": ([1], 24, 512),
    "page edges": ([63, 64, 65, 127, 128, 129, 1], 12, 512),
    "one of 8k": ([8190], 12, 512),
    "8k and short ones": ([8000, 3, 700, 64], 8, 300),
    "32 at once, small chunks": ([1 + 29 * i for i in range(32)], 12, 50),
    "17 at once": ([200 + i for i in range(17)], 12, 512),
}


@pytest.mark.parametrize("case", CASES)
def test_a_random_model(random_models: tuple[PreTrainedModel, HostDrivenGraphEngine, TorchEngine], case: str) -> None:
    made, ours, cpu = random_models
    lengths, count, chunk = CASES[case]
    prompts = prompts_of(lengths, 4096, seed=len(case))
    expected = [huggingface.greedy(made, prompt, count) for prompt in prompts]
    assert drive(ours, prompts, count, chunk, seed=2) == expected
    assert drive(cpu, prompts, count, chunk, seed=3) == expected


@pytest.mark.parametrize("singles", get_args(Singles))
@pytest.mark.parametrize("case", ["one token", "page edges", "8k and short ones", "32 at once, small chunks"])
def test_decodes_behind_prompts(
    random_models: tuple[PreTrainedModel, HostDrivenGraphEngine, TorchEngine], case: str, singles: Singles
) -> None:
    made, _, cpu = random_models
    lengths, count, chunk = CASES[case]
    config = small_config()
    settings = CudaSettings(singles=singles, prefill_sizes=(16, 64, 128, STEP_TOKENS), decode_sizes=(1, 4, 16, LANES))
    ours = HostDrivenGraphEngine(CudaGraphEngine(model_of(made, config, "cuda"), "r", settings), config.max_context)
    ours.allocate(PAGES, LANES, STEP_TOKENS)
    prompts = prompts_of(lengths, 4096, seed=len(case))
    expected = [huggingface.greedy(made, prompt, count) for prompt in prompts]
    for engine in (ours, cpu):
        assert drive(engine, prompts, count, min(chunk, STEP_TOKENS - LANES), seed=2, mixed=True) == expected
    ours.close()


@pytest.mark.model
def test_smollm2() -> None:
    """With its real weights, against the CPU engine, which bench/exactness.py compares with HuggingFace."""
    folder = Path(os.environ.get("HOSTLESS_MODELS", "~/.cache/hostless/models")).expanduser() / "SmolLM2-135M-Instruct"
    if not list(folder.glob("*.gguf")):
        pytest.skip(f"NOT RUN: no model in {folder}")
    loaded = load(folder, "float32")
    assert isinstance(loaded.model, Llama)
    settings = CudaSettings(prefill_sizes=(16, 128, STEP_TOKENS), decode_sizes=(1, 8, LANES))
    on_gpu = load(folder, "float32", "cuda")
    ours = HostDrivenGraphEngine(CudaGraphEngine(on_gpu.model, "s", settings), loaded.model.config.max_context)
    ours.allocate(PAGES, LANES, STEP_TOKENS)
    cpu = TorchEngine(loaded, TorchSettings())
    cpu.allocate(PAGES, LANES, STEP_TOKENS)
    # token ids of no particular text; real weights answer with clear margins all the same
    for lengths in ([7], [1000, 64, 3, 130], [20 + i for i in range(32)], [7000]):
        prompts = prompts_of(lengths, 40_000, seed=len(lengths))
        assert drive(ours, prompts, 16, 512, seed=4) == drive(cpu, prompts, 16, 512, seed=5), lengths
    ours.close()
