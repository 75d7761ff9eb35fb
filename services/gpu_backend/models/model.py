"""What an engine runs, and what a model asks of the engine.

A model knows nothing of pages, sequences or kernels: it is given tokens in any order with their
positions, and a function that attends. That is what lets one model run eagerly and captured (B10).
"""

from collections.abc import Callable
from typing import Protocol

import torch

from services.gpu_backend.models.config import ModelConfig

Report = Callable[[str, int], None]
"""(tensor, its elements); called after each tensor that was loaded."""


class Attention(Protocol):
    """Keeps key and value [N, kv_heads, head_dim] as the KV of the step's tokens, then returns what
    query [N, heads, head_dim] finds: a tensor of its shape. Positions are already rotated in."""

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor: ...


class Model(Protocol):
    """Loaded weights. Both calls are pure but for what `attention` writes."""

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """int64[N], int64[N] -> hidden states [N, hidden], after the last norm."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden] -> float32[R, vocab]."""
        ...
