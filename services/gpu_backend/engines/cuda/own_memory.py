"""Engine memory without a scheduler: for warming up, the host-driven engine, tests and benchmarks.

The same parts as step.hpp's EngineMemory, without those that only the scheduler and the KV agent use.
"""

from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from services.gpu_backend.engine import STEP_SEQUENCE
from services.gpu_backend.engines.cuda.contract import StepMemory
from services.gpu_backend.scheduler.memory import STEP_HEADER


def lay_out(address: int, *, lanes: int, step_tokens: int, lane_pages: int, pages: int) -> StepMemory:
    """Inputs first, so that one copy fills them; `sources` (see StepImage) lie just before out_tokens."""
    at, offsets = STEP_HEADER.itemsize, []
    for size in (STEP_SEQUENCE.itemsize * lanes, 4 * lanes * lane_pages, 4 * step_tokens, 4 * lanes, 4 * lanes):
        offsets.append(at)
        at += -(-size // 64) * 64
    sequences, block_tables, tokens, _, out_tokens = offsets
    return StepMemory(
        address=address,
        size_bytes=at,
        lanes=lanes,
        step_tokens=step_tokens,
        lane_pages=lane_pages,
        pages=pages,
        step_offset=0,
        sequences_offset=sequences,
        tokens_offset=tokens,
        out_tokens_offset=out_tokens,
        block_tables_offset=block_tables,
    )


def sources_offset(memory: StepMemory) -> int:
    return memory.out_tokens_offset - -(-4 * memory.lanes // 64) * 64


class StepImage:
    """A step in host memory, as numpy sees it; zeroed.

    header        STEP_HEADER[1]
    sequences     STEP_SEQUENCE[lanes]
    tokens        u32[step_tokens]
    block_tables  u32[lanes, lane_pages]
    sources       i32[lanes]: row of the step before whose token is the row's first here; -1: `tokens` has it
    out_tokens    u32[lanes]
    """

    def __init__(self, at: StepMemory, pinned: bool) -> None:
        self.bytes = torch.zeros(at.size_bytes, dtype=torch.uint8, pin_memory=pinned)
        host = self.bytes.numpy()

        def view(offset: int, count: int, dtype: Any) -> NDArray[Any]:
            return host[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)

        self.header: NDArray[Any] = view(at.step_offset, 1, STEP_HEADER)
        self.sequences: NDArray[Any] = view(at.sequences_offset, at.lanes, STEP_SEQUENCE)
        self.tokens: NDArray[np.uint32] = view(at.tokens_offset, at.step_tokens, np.uint32)
        self.sources: NDArray[np.int32] = view(sources_offset(at), at.lanes, np.int32)
        self.out_tokens: NDArray[np.uint32] = view(at.out_tokens_offset, at.lanes, np.uint32)
        tables = view(at.block_tables_offset, at.lanes * at.lane_pages, np.uint32)
        self.block_tables: NDArray[np.uint32] = tables.reshape(at.lanes, at.lane_pages)


class OwnMemory:
    """Zeroed engine memory on `device`, with an image of it in host memory.

    A step is written into an image, `upload`ed, launched, and its results `download`ed.
    """

    def __init__(self, device: torch.device, *, lanes: int, step_tokens: int, lane_pages: int, pages: int) -> None:
        sizes = {"lanes": lanes, "step_tokens": step_tokens, "lane_pages": lane_pages, "pages": pages}
        self.device_bytes = torch.zeros(lay_out(0, **sizes).size_bytes, dtype=torch.uint8, device=device)
        self.memory = lay_out(self.device_bytes.data_ptr(), **sizes)
        self.image = self.new_image()
        self.header, self.sequences, self.tokens = self.image.header, self.image.sequences, self.image.tokens
        self.out_tokens, self.block_tables = self.image.out_tokens, self.image.block_tables

    @classmethod
    def like(cls, memory: StepMemory, device: torch.device) -> "OwnMemory":
        return cls(
            device,
            lanes=memory.lanes,
            step_tokens=memory.step_tokens,
            lane_pages=memory.lane_pages,
            pages=memory.pages,
        )

    def new_image(self) -> StepImage:
        return StepImage(self.memory, pinned=self.device_bytes.device.type == "cuda")

    def upload(self, image: StepImage | None = None) -> None:
        """All inputs, on the current stream, which the caller waits for before writing the arrays again."""
        inputs = slice(0, self.memory.out_tokens_offset)
        self.device_bytes[inputs].copy_((image or self.image).bytes[inputs], non_blocking=True)

    def download(self, image: StepImage | None = None) -> None:
        """done_step, error and out_tokens, on the current stream; there once it has been waited for."""
        host = (image or self.image).bytes
        for begin, size in ((0, STEP_HEADER.itemsize), (self.memory.out_tokens_offset, 4 * self.memory.lanes)):
            part = slice(begin, begin + size)
            host[part].copy_(self.device_bytes[part], non_blocking=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.device_bytes = self.device_bytes[:0]
