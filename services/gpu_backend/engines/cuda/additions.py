"""What variants of Llama do to queries, keys and values before attention: Qwen2's bias, Qwen3's norm of heads.

Kernels of their own behind the product, so that a model without them runs exactly what it would if they weren't here.
"""

from typing import Any

import torch
import triton

from services.gpu_backend.engines.cuda.layer_kernels import add_bias, norm_heads
from services.gpu_backend.models.config import ModelConfig
from services.gpu_backend.models.llama import Layer

_BIAS_BLOCK = 1024
_VALUES_A_WARP = 1024
"""That norm_heads gives a warp: 32 registers of a thread."""


class Additions:
    def __init__(self, config: ModelConfig, overlap: bool) -> None:
        self._config = config
        self._overlap: dict[str, Any] = {"OVERLAP": overlap, "launch_pdl": overlap}

    def apply(self, rows: int, layer: Layer, qkv: torch.Tensor) -> None:
        """In place, on the first `rows` rows of qkv[_, (heads + 2 kv_heads) head_dim]. Launches nothing for Llama."""
        config = self._config
        if layer.qkv_bias is not None:
            width = qkv.shape[1]
            add_bias[(rows, triton.cdiv(width, _BIAS_BLOCK))](
                qkv, layer.qkv_bias, width, BLOCK=_BIAS_BLOCK, num_warps=4, **self._overlap
            )
        if layer.query_norm is not None:
            heads = triton.next_power_of_2(config.heads + config.kv_heads)
            norm_heads[(rows,)](
                qkv, layer.query_norm, layer.key_norm, config.rms_epsilon,
                HEADS=config.heads, KV_HEADS=config.kv_heads, NORMED=heads, DIM=config.head_dim,
                num_warps=max(4, min(16, heads * config.head_dim // _VALUES_A_WARP)), **self._overlap,
            )  # fmt: skip
