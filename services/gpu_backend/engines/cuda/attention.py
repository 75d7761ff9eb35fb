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
from services.gpu_backend.engines.cuda.settings import Singles
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
        singles: Singles,
    ) -> None:
        """programs: that the decodes of a step are to be cut into, about."""
        self._config = config
        self._pool = pool
        self._rotations = rotations
        self._buffers = buffers
        self.programs = programs
        self._overlap: dict[str, Any] = {"OVERLAP": overlap, "launch_pdl": overlap}
        self._singles = singles
        self._beside = torch.cuda.Stream(pool.device) if singles == "beside" and pool.is_cuda else None
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
        """Of a decode step: sequence i is row i."""
        self._attend_singles(layer, rows, rows, step, BEHIND=False, **self._overlap)

    def prefill(self, layer: int, rows: int, step: StepTensors) -> None:
        """Of a prefill step, with or without decodes at its end."""
        most = min(len(step.sequences), rows)
        if self._singles == "tiles":
            self._attend_prompts(layer, rows, step)
        elif self._beside is None:  # on a CPU, in Triton's interpreter
            self._attend_singles(layer, most, rows, step, BEHIND=True, OVERLAP=False)
            self._attend_prompts(layer, rows, step)
        else:
            here = torch.cuda.current_stream()
            self._beside.wait_stream(here)
            with torch.cuda.stream(self._beside):
                self._attend_singles(layer, most, rows, step, BEHIND=True, OVERLAP=False)
            self._attend_prompts(layer, rows, step)
            here.wait_stream(self._beside)

    def _attend_singles(self, layer: int, sequences: int, rows: int, step: StepTensors, **how: Any) -> None:
        config, buffers = self._config, self._buffers
        splits = most_splits(sequences, config.kv_heads, self.programs)
        attend_decode[(splits, config.kv_heads, sequences)](
            buffers.qkv, self._rotations, buffers.positions, buffers.row_lanes, buffers.first_single,
            buffers.split_pages, step.block_tables, self._pool[:, layer], buffers.attended, buffers.partials,
            buffers.sums, rows, step.block_tables.shape[1], self._pool.stride(0), self._scale,
            HEADS=config.heads, KV_HEADS=config.kv_heads, HALF=config.head_dim // 2,
            GROUP=self._group, MOST_SPLITS=splits, PRECISION="ieee",
            STAGES=1 if self._wide else _DECODE_STAGES, num_warps=4, **how,
        )  # fmt: skip
        combine_splits[(config.heads, sequences)](
            buffers.partials, buffers.sums, buffers.positions, buffers.first_single, buffers.split_pages,
            buffers.attended, rows,
            HEADS=config.heads, DIM=config.head_dim, MOST_SPLITS=splits, SPLITS=triton.next_power_of_2(splits),
            num_warps=4 if splits > 8 else 1, **how,
        )  # fmt: skip

    def _attend_prompts(self, layer: int, rows: int, step: StepTensors) -> None:
        config, buffers, apart = self._config, self._buffers, self._singles != "tiles"
        rotate_and_keep[(rows,)](
            buffers.qkv, self._rotations, buffers.positions, buffers.row_lanes, buffers.first_single,
            step.block_tables, self._pool[:, layer], step.block_tables.shape[1], self._pool.stride(0),
            HEADS=config.heads, KV_HEADS=config.kv_heads,
            TURNED=triton.next_power_of_2(config.heads + config.kv_heads),
            KV=triton.next_power_of_2(config.kv_heads), HALF=config.head_dim // 2, SINGLES_APART=apart, num_warps=4,
        )  # fmt: skip
        tokens = max(1, (32 if self._wide else _PREFILL_ROWS) // self._shared)
        lanes = len(step.sequences)
        tiles = triton.cdiv(rows, tokens) + min(lanes, rows)
        attend_prefill[(config.kv_heads, tiles)](
            buffers.qkv, step.sequences, step.sequence_count, buffers.first_single, step.block_tables,
            self._pool[:, layer], buffers.attended, step.block_tables.shape[1], self._pool.stride(0), lanes,
            self._scale,
            HEADS=config.heads, KV_HEADS=config.kv_heads, DIM=config.head_dim, TOKENS=tokens, GROUP=self._shared,
            SEQUENCES=triton.next_power_of_2(lanes), PRECISION="ieee", STAGES=1 if self._wide else _PREFILL_STAGES,
            SINGLES_APART=apart, num_warps=4 if self._wide else _PREFILL_WARPS,
        )  # fmt: skip
