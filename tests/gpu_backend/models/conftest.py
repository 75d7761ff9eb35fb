"""Tiny random models of every architecture, saved by transformers and as GGUF."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from services.gpu_backend.models.variants import VARIANTS

CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
}
assert CLASSES.keys() == VARIANTS.keys()
OWN = {"qwen3": {"head_dim": 32}, "phi3": {"pad_token_id": 0, "eos_token_id": 2}}
"""Of an architecture: what its config says beside what all say. Qwen3's heads are wider than hidden size / heads."""


def tiny_decoder(architecture: str = "llama", **changes: Any) -> PreTrainedModel:
    """Two layers, 4 query heads on 2 KV heads; weights large enough that every part matters."""
    torch.manual_seed(7)
    settings = {
        "vocab_size": 200,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "initializer_range": 0.15,
        "tie_word_embeddings": False,
        **OWN.get(architecture, {}),
        **changes,
    }
    make_config, make_model = CLASSES[architecture]
    model: PreTrainedModel = make_model(make_config(**settings)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                weight.uniform_(-1, 1)
    return model


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """HuggingFace's row order of q and k to GGUF's, written row by row: j + s d/2 goes to 2j + s."""
    rows = weight.shape[0] // heads
    out = np.empty_like(weight)
    for head in range(heads):
        for j in range(rows // 2):
            for s in range(2):
                out[head * rows + 2 * j + s] = weight[head * rows + j + s * (rows // 2)]
    return out


def gguf_tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The model's weights under GGUF's names, as the `gguf` package has them, and in GGUF's row order."""
    config = model.config
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[config.model_type], config.num_hidden_layers)
    tensors = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = weight.float().numpy()
        if config.model_type == "llama" and "q_proj" in name:
            array = interleave(array, config.num_attention_heads)
        if config.model_type == "llama" and "k_proj" in name:
            array = interleave(array, config.num_key_value_heads)
        gguf_name = names.get_name(name, (".weight", ".bias"))
        assert gguf_name, name
        tensors[gguf_name] = array
    return tensors


def write_gguf(
    file: Path,
    model: PreTrainedModel,
    tensors: dict[str, np.ndarray],
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    architecture: str = "",
    edit: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> None:
    """Matrices in `kind`, vectors in float32; `edit` may add metadata. architecture: as the model's, if empty."""
    config = model.config
    writer = gguf.GGUFWriter(file, architecture or config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    edit(writer)
    for name, array in tensors.items():
        if array.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def make_model() -> Callable[..., PreTrainedModel]:
    return tiny_decoder


@pytest.fixture(scope="session")
def tiny() -> PreTrainedModel:
    return tiny_decoder()


@pytest.fixture
def saved(tiny: PreTrainedModel, tmp_path: Path) -> Path:
    """A folder with config.json and model.safetensors of `tiny`, free to damage."""
    tiny.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def to_gguf_tensors() -> Callable[[PreTrainedModel], dict[str, np.ndarray]]:
    return gguf_tensors


@pytest.fixture(scope="session")
def write() -> Callable[..., None]:
    return write_gguf
