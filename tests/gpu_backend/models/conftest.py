"""Tiny random Llama models, saved by transformers and as GGUF."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama(**changes: Any) -> LlamaForCausalLM:
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
        **changes,
    }
    model = LlamaForCausalLM(LlamaConfig(**settings)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
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


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The model's weights under GGUF's names and in GGUF's row order."""
    config, tensors = model.config, {}
    for name, weight in model.state_dict().items():
        array = weight.float().numpy()
        if name == "model.embed_tokens.weight":
            tensors["token_embd.weight"] = array
        elif name == "model.norm.weight":
            tensors["output_norm.weight"] = array
        elif name == "lm_head.weight":
            if not config.tie_word_embeddings:
                tensors["output.weight"] = array
        else:
            index, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            if part == "self_attn.q_proj":
                array = interleave(array, config.num_attention_heads)
            if part == "self_attn.k_proj":
                array = interleave(array, config.num_key_value_heads)
            tensors[f"blk.{index}.{GGUF_NAMES[part]}.weight"] = array
    return tensors


def write_gguf(
    file: Path,
    model: LlamaForCausalLM,
    tensors: dict[str, np.ndarray],
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    architecture: str = "llama",
    edit: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> None:
    """Matrices in `kind`, vectors in float32; `edit` may add metadata."""
    config = model.config
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
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
def make_llama() -> Callable[..., LlamaForCausalLM]:
    return tiny_llama


@pytest.fixture(scope="session")
def tiny() -> LlamaForCausalLM:
    return tiny_llama()


@pytest.fixture
def saved(tiny: LlamaForCausalLM, tmp_path: Path) -> Path:
    """A folder with config.json and model.safetensors of `tiny`, free to damage."""
    tiny.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def to_gguf_tensors() -> Callable[[LlamaForCausalLM], dict[str, np.ndarray]]:
    return gguf_tensors


@pytest.fixture(scope="session")
def write() -> Callable[..., None]:
    return write_gguf
