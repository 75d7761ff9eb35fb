"""The Llama architecture: RMSNorm, RoPE, grouped-query attention, SwiGLU.

The model knows nothing of pages, sequences or devices' kernels: it is given tokens in any order with
their positions, and a function that attends. That is what lets one model run eagerly and captured (B10).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from services.gpu_backend.models.config import ModelConfig
from services.gpu_backend.models.gguf_loader import GgufNames
from services.gpu_backend.models.model import Attention, Report
from services.gpu_backend.models.rope import inverse_frequencies, rotate_, rotations
from services.gpu_backend.models.weights import WeightSource

ROPE_FACTORS = "rope_freqs.weight"  # only in GGUF: Llama 3's scaling, ready made


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, fused where one GEMM does for several."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor  # [(heads + 2 kv_heads) head_dim, hidden]: one GEMM for three
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor  # [2 intermediate, hidden]
    down: torch.Tensor


GGUF_NAMES = GgufNames(
    names={
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        ROPE_FACTORS: "rope_freqs.weight",
        "model.layers.{i}.input_layernorm.weight": "blk.{i}.attn_norm.weight",
        "model.layers.{i}.self_attn.q_proj.weight": "blk.{i}.attn_q.weight",
        "model.layers.{i}.self_attn.k_proj.weight": "blk.{i}.attn_k.weight",
        "model.layers.{i}.self_attn.v_proj.weight": "blk.{i}.attn_v.weight",
        "model.layers.{i}.self_attn.o_proj.weight": "blk.{i}.attn_output.weight",
        "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
        "model.layers.{i}.mlp.gate_proj.weight": "blk.{i}.ffn_gate.weight",
        "model.layers.{i}.mlp.up_proj.weight": "blk.{i}.ffn_up.weight",
        "model.layers.{i}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
    },
    interleaved=frozenset({"model.layers.{i}.self_attn.q_proj.weight", "model.layers.{i}.self_attn.k_proj.weight"}),
)


class Llama:
    """A loaded model. `forward` and `logits` are pure but for what `attention` writes.

    The weights are public, for engines that run this architecture with kernels of their own.
    """

    def __init__(
        self,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        report: Report,
    ) -> None:
        config = source.config
        self.config = config
        self.dtype = dtype
        self.device = device

        def read(name: str, *shape: int) -> torch.Tensor:
            tensor = source.read(name, shape).to(device=device, dtype=dtype)
            report(name, tensor.numel())
            return tensor

        self.embedding = read("model.embed_tokens.weight", config.vocab, config.hidden)
        self.layers = [_read_layer(config, i, read) for i in range(config.layers)]
        self.norm = read("model.norm.weight", config.hidden)
        tied = not source.has("lm_head.weight")
        self.head = self.embedding if tied else read("lm_head.weight", config.vocab, config.hidden)
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        if source.has(ROPE_FACTORS):
            frequencies /= source.read(ROPE_FACTORS, (config.head_dim // 2,)).to(torch.float32)
        self.frequencies = frequencies.to(device)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """int64[N], int64[N] -> hidden states [N, hidden], after the last norm."""
        config = self.config
        query_heads, turned_heads = config.heads, config.heads + config.kv_heads
        cos, sin = rotations(positions, self.frequencies)
        hidden = functional.embedding(tokens, self.embedding)
        for index, layer in enumerate(self.layers):
            normed = self._rms_norm(hidden, layer.attention_norm)
            heads = functional.linear(normed, layer.qkv).view(len(tokens), -1, config.head_dim)
            rotate_(heads[:, :turned_heads], cos, sin)
            found = attention(
                index, heads[:, :query_heads], heads[:, query_heads:turned_heads], heads[:, turned_heads:]
            )
            hidden = hidden + functional.linear(found.reshape(len(tokens), -1), layer.output)
            normed = self._rms_norm(hidden, layer.mlp_norm)
            gate, up = functional.linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.down)
        return self._rms_norm(hidden, self.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> float32[R, vocab]."""
        return functional.linear(hidden, self.head).to(torch.float32)

    def _rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, (self.config.hidden,), weight, self.config.rms_epsilon)


def _read_layer(config: ModelConfig, index: int, read: Callable[..., torch.Tensor]) -> Layer:
    prefix = f"model.layers.{index}."
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    qkv = [
        read(prefix + "self_attn.q_proj.weight", queries, config.hidden),
        read(prefix + "self_attn.k_proj.weight", keys, config.hidden),
        read(prefix + "self_attn.v_proj.weight", keys, config.hidden),
    ]
    gate_up = [read(prefix + f"mlp.{part}_proj.weight", config.intermediate, config.hidden) for part in ("gate", "up")]
    return Layer(
        attention_norm=read(prefix + "input_layernorm.weight", config.hidden),
        qkv=torch.cat(qkv),
        output=read(prefix + "self_attn.o_proj.weight", config.hidden, queries),
        mlp_norm=read(prefix + "post_attention_layernorm.weight", config.hidden),
        gate_up=torch.cat(gate_up),
        down=read(prefix + "mlp.down_proj.weight", config.hidden, config.intermediate),
    )
