"""The Llama architecture: RMSNorm, RoPE, grouped-query attention, SwiGLU; and its variants, which add to it.

The model knows nothing of pages, sequences or devices' kernels: it is given tokens in any order with
their positions, and a function that attends. That is what lets one model run eagerly and captured (B10).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from services.gpu_backend.models.config import ModelConfig
from services.gpu_backend.models.model import Attention, Report
from services.gpu_backend.models.rope import inverse_frequencies, rotate_, rotations
from services.gpu_backend.models.variants import ROPE_FACTORS, VARIANTS, Variant
from services.gpu_backend.models.weights import WeightSource

Read = Callable[..., torch.Tensor]
"""read(name, *shape)."""


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, fused where one GEMM does for several. None: the variant has none."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor  # [(heads + 2 kv_heads) head_dim, hidden]: one GEMM for three
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor  # [2 intermediate, hidden]
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None  # [(heads + 2 kv_heads) head_dim]
    query_norm: torch.Tensor | None = None  # [head_dim], the same for every head; key_norm is there if this is
    key_norm: torch.Tensor | None = None

    def tensors(self) -> list[torch.Tensor]:
        return [each for each in vars(self).values() if each is not None]


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
        variant = VARIANTS[config.architecture]
        self.layers = [_read_layer(config, variant, i, read) for i in range(config.layers)]
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
            heads = functional.linear(normed, layer.qkv, layer.qkv_bias).view(len(tokens), -1, config.head_dim)
            if layer.query_norm is not None and layer.key_norm is not None:
                queries, keys = heads[:, :query_heads], heads[:, query_heads:turned_heads]
                queries.copy_(self._rms_norm(queries, layer.query_norm))
                keys.copy_(self._rms_norm(keys, layer.key_norm))
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
        return functional.rms_norm(hidden, tuple(weight.shape), weight, self.config.rms_epsilon)


def _read_layer(config: ModelConfig, variant: Variant, index: int, read: Read) -> Layer:
    prefix = f"model.layers.{index}."
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    if variant.fused:
        qkv = read(prefix + "self_attn.qkv_proj.weight", queries + 2 * keys, config.hidden)
        gate_up = read(prefix + "mlp.gate_up_proj.weight", 2 * config.intermediate, config.hidden)
    else:
        qkv = _joined(read, prefix + "self_attn.{}_proj.weight", {"q": queries, "k": keys, "v": keys}, config.hidden)
        halves = {"gate": config.intermediate, "up": config.intermediate}
        gate_up = _joined(read, prefix + "mlp.{}_proj.weight", halves, config.hidden)
    bias = query_norm = key_norm = None
    if variant.qkv_bias:
        bias = _joined(read, prefix + "self_attn.{}_proj.bias", {"q": queries, "k": keys, "v": keys})
    if variant.qk_norm:
        query_norm = read(prefix + "self_attn.q_norm.weight", config.head_dim)
        key_norm = read(prefix + "self_attn.k_norm.weight", config.head_dim)
    return Layer(
        attention_norm=read(prefix + "input_layernorm.weight", config.hidden),
        qkv=qkv,
        output=read(prefix + "self_attn.o_proj.weight", config.hidden, queries),
        mlp_norm=read(prefix + "post_attention_layernorm.weight", config.hidden),
        gate_up=gate_up,
        down=read(prefix + "mlp.down_proj.weight", config.hidden, config.intermediate),
        qkv_bias=bias,
        query_norm=query_norm,
        key_norm=key_norm,
    )


def _joined(read: Read, name: str, rows: dict[str, int], *columns: int) -> torch.Tensor:
    """Tensors called `name` with each part in it, one below the other."""
    return torch.cat([read(name.format(part), count, *columns) for part, count in rows.items()])
