"""Static buffers that all graphs share, since one step runs at a time; sized for the largest step."""

from dataclasses import dataclass, fields

import torch

from services.gpu_backend.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Buffers:
    """rows: tokens of the largest step; lanes: its most sequences."""

    hidden: torch.Tensor  # [rows, hidden]: the residual stream
    normed: torch.Tensor  # [rows, hidden]
    qkv: torch.Tensor  # [rows, (heads + 2 kv_heads) head_dim]
    attended: torch.Tensor  # [rows, heads head_dim]
    gate_up: torch.Tensor  # [rows, 2 intermediate]
    activated: torch.Tensor  # [rows, intermediate]
    last: torch.Tensor  # [lanes, hidden]: of the rows to sample
    logits: torch.Tensor  # [lanes, vocab]
    positions: torch.Tensor  # int32[rows]: -1 for padding
    row_lanes: torch.Tensor  # int32[rows]
    first_single: torch.Tensor  # int32[1]: rows of a prefill step from there on are of sequences with one token each
    split_pages: torch.Tensor  # int32[1]
    partials: torch.Tensor  # float32[most of sequences * splits, heads, head_dim]
    sums: torch.Tensor  # float32[the same, heads, 2]

    @property
    def size_bytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    @classmethod
    def allocate(
        cls, config: ModelConfig, dtype: torch.dtype, device: torch.device, *, rows: int, lanes: int, splits: int
    ) -> "Buffers":
        """splits: the most of sequences * splits of any shape."""

        def of(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        query = config.heads * config.head_dim
        return cls(
            hidden=of(rows, config.hidden),
            normed=of(rows, config.hidden),
            qkv=of(rows, query + 2 * config.kv_heads * config.head_dim),
            attended=of(rows, query),
            gate_up=of(rows, 2 * config.intermediate),
            activated=of(rows, config.intermediate),
            last=of(lanes, config.hidden),
            logits=of(lanes, config.vocab),
            positions=of(rows, dtype=torch.int32),
            row_lanes=of(rows, dtype=torch.int32),
            first_single=of(1, dtype=torch.int32),
            split_pages=of(1, dtype=torch.int32),
            partials=of(splits, config.heads, config.head_dim, dtype=torch.float32),
            sums=of(splits, config.heads, 2, dtype=torch.float32),
        )
