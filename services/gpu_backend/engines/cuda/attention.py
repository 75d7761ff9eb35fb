"""Launches the paged attention kernels, with tiles chosen for the model's shape."""

import math
from typing import Any

import torch
import triton

from services.gpu_backend.engines.cuda.buffers import Buffers
from services.gpu_backend.engines.cuda.decode_attention import attend_decode, combine_splits
from services.gpu_backend.engines.cuda.layer_kernels import rotate_and_keep
from services.gpu_backend.engines.cuda.memory_views import StepTensors
from services.gpu_backend.engines.cuda.prefill_attention import attend_prefill
from services.gpu_backend.models.config import ModelConfig

_ROWS_OF_DOT = 16  # the fewest rows of a tensor core's tile
_PREFILL_ROWS, _PREFILL_STAGES, _PREFILL_WARPS = 64, 2, 4
_DECODE_STAGES = 3


def rotation_table(config: ModelConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """float32[max_context, 2, head_dim / 2]: cosines and sines, the same as models/rope.py's."""
    positions = torch.arange(config.max_context, dtype=torch.float32, device=frequencies.device)
    angles = positions[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()), dim=1).contiguous()


def most_splits(sequences: int, kv_heads: int, programs: int) -> int:
    """Splits that the grid of a decode shape has room for: enough to fill the GPU with one long
    sequence where few are, and some for unequal lengths where many are."""
    enough = -(-programs // (sequences * kv_heads))
    return max(4 if sequences > 32 else 8, min(64, enough))


class PagedAttention:
    """pool: [pages, layers, 2, 64, kv_heads, head_dim]; a page over all layers is a Full Block (D5)."""

    def __init__(
        self,
        config: ModelConfig,
        pool: torch.Tensor,
        rotations: torch.Tensor,
        buffers: Buffers,
        programs: int,
        overlap: bool,
    ) -> None:
        """programs: that a decode step is to be cut into, about."""
        self._config = config
        self._pool = pool
        self._rotations = rotations
        self._buffers = buffers
        self.programs = programs
        self._overlap: dict[str, Any] = {"OVERLAP": overlap, "launch_pdl": overlap}
        # exp2 is cheaper than exp: log2(e) goes into the scale
        self._scale = math.log2(math.e) / math.sqrt(config.head_dim)
        shared = triton.next_power_of_2(config.heads // config.kv_heads)
        self._group = max(shared, _ROWS_OF_DOT)
        self._shared = shared
        self._wide = pool.dtype == torch.float32

    def split_target(self) -> int:
        """Splits that all sequences of a step should add up to, for one KV head."""
        return max(1, self.programs // self._config.kv_heads)

    def decode(self, layer: int, rows: int, step: StepTensors) -> None:
        config, buffers = self._config, self._buffers
        splits = most_splits(rows, config.kv_heads, self.programs)
        attend_decode[(splits, config.kv_heads, rows)](
            buffers.qkv, self._rotations, buffers.positions, buffers.row_lanes, buffers.split_pages,
            step.block_tables, self._pool[:, layer], buffers.attended, buffers.partials, buffers.sums,
            step.block_tables.shape[1], self._pool.stride(0), self._scale,
            HEADS=config.heads, KV_HEADS=config.kv_heads, HALF=config.head_dim // 2,
            GROUP=self._group, MOST_SPLITS=splits, PRECISION="ieee",
            STAGES=1 if self._wide else _DECODE_STAGES, num_warps=4, **self._overlap,
        )  # fmt: skip
        combine_splits[(config.heads, rows)](
            buffers.partials, buffers.sums, buffers.positions, buffers.split_pages, buffers.attended,
            HEADS=config.heads, DIM=config.head_dim, MOST_SPLITS=splits, SPLITS=triton.next_power_of_2(splits),
            num_warps=4 if splits > 8 else 1, **self._overlap,
        )  # fmt: skip

    def prefill(self, layer: int, rows: int, step: StepTensors) -> None:
        config, buffers = self._config, self._buffers
        rotate_and_keep[(rows,)](
            buffers.qkv, self._rotations, buffers.positions, buffers.row_lanes, step.block_tables,
            self._pool[:, layer], step.block_tables.shape[1], self._pool.stride(0),
            HEADS=config.heads, KV_HEADS=config.kv_heads,
            TURNED=triton.next_power_of_2(config.heads + config.kv_heads),
            KV=triton.next_power_of_2(config.kv_heads), HALF=config.head_dim // 2, num_warps=4,
        )  # fmt: skip
        tokens = max(1, (32 if self._wide else _PREFILL_ROWS) // self._shared)
        lanes = len(step.sequences)
        tiles = triton.cdiv(rows, tokens) + min(lanes, rows)
        attend_prefill[(config.kv_heads, tiles)](
            buffers.qkv, step.sequences, step.sequence_count, step.block_tables, self._pool[:, layer],
            buffers.attended, step.block_tables.shape[1], self._pool.stride(0), lanes, self._scale,
            HEADS=config.heads, KV_HEADS=config.kv_heads, DIM=config.head_dim, TOKENS=tokens, GROUP=self._shared,
            SEQUENCES=triton.next_power_of_2(lanes), PRECISION="ieee", STAGES=1 if self._wide else _PREFILL_STAGES,
            num_warps=4 if self._wide else _PREFILL_WARPS,
        )  # fmt: skip
