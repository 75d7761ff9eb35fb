"""Engine memory (step.hpp) as tensors: the graphs' inputs and outputs at their fixed addresses."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from services.gpu_backend.engine import STEP_SEQUENCE
from services.gpu_backend.engines.cuda.contract import StepMemory
from services.gpu_backend.scheduler.memory import header_offset


@dataclass(frozen=True, slots=True)
class StepTensors:
    """Unsigned fields as int32: Triton and torch know those; none of the values reaches 2^31."""

    step: torch.Tensor  # int64[1]
    done_step: torch.Tensor  # int64[1]
    error: torch.Tensor  # int32[1]
    sequence_count: torch.Tensor  # int32[1]
    sequences: torch.Tensor  # int32[lanes, 12]
    tokens: torch.Tensor  # int32[step_tokens]
    out_tokens: torch.Tensor  # int32[lanes]
    block_tables: torch.Tensor  # int32[lanes, lane_pages]


class _Raw:
    """Device memory that somebody else owns, in the form that torch can wrap."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def tensors_of(memory: StepMemory, device: torch.device) -> StepTensors:
    """Views; whoever owns `memory` keeps it as long as they are used."""
    if device.type == "cpu":
        whole = torch.frombuffer((ctypes.c_uint8 * memory.size_bytes).from_address(memory.address), dtype=torch.uint8)
    else:
        whole = torch.as_tensor(_Raw(memory.address, memory.size_bytes), device=device)

    def words(offset: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        size = dtype.itemsize
        for length in shape:
            size *= length
        return whole[offset : offset + size].view(dtype).view(shape)

    return StepTensors(
        step=words(memory.step_offset, 1, dtype=torch.int64),
        done_step=words(memory.done_step - memory.address, 1, dtype=torch.int64),
        error=words(memory.error - memory.address, 1),
        sequence_count=words(memory.step_offset + header_offset("sequence_count"), 1),
        sequences=words(memory.sequences_offset, memory.lanes, STEP_SEQUENCE.itemsize // 4),
        tokens=words(memory.tokens_offset, memory.step_tokens),
        out_tokens=words(memory.out_tokens_offset, memory.lanes),
        block_tables=words(memory.block_tables_offset, memory.lanes, memory.lane_pages),
    )
