"""Engine memory without a scheduler: for warming up, the host-driven engine, tests and benchmarks.

The same fields as step.hpp's EngineMemory, without those that only the scheduler and the KV agent use.
"""

from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from services.gpu_backend.engine import STEP_SEQUENCE
from services.gpu_backend.engines.cuda.contract import StepMemory

STEP_HEADER_BYTES = 128
HEADER = np.dtype(
    {
        "names": ["step", "kind", "sequence_count", "token_count", "graph", "done_step", "error"],
        "formats": ["<u8", "<u4", "<u4", "<u4", "<u4", "<u8", "<u4"],
        "offsets": [0, 8, 12, 16, 20, 64, 72],
        "itemsize": STEP_HEADER_BYTES,
    }
)


def lay_out(address: int, *, lanes: int, step_tokens: int, lane_pages: int, pages: int) -> StepMemory:
    """Inputs first, so that one copy fills them."""
    at, offsets = STEP_HEADER_BYTES, []
    for size in (STEP_SEQUENCE.itemsize * lanes, 4 * lanes * lane_pages, 4 * step_tokens, 4 * lanes):
        offsets.append(at)
        at += -(-size // 64) * 64
    sequences, block_tables, tokens, out_tokens = offsets
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


class OwnMemory:
    """Zeroed engine memory on `device`, with a copy of it in host memory that numpy sees.

    A step is written into the host's arrays, `upload`ed, launched, and its results `download`ed.
    """

    def __init__(self, device: torch.device, *, lanes: int, step_tokens: int, lane_pages: int, pages: int) -> None:
        sizes = {"lanes": lanes, "step_tokens": step_tokens, "lane_pages": lane_pages, "pages": pages}
        self._device_bytes = torch.zeros(lay_out(0, **sizes).size_bytes, dtype=torch.uint8, device=device)
        self.memory = lay_out(self._device_bytes.data_ptr(), **sizes)
        self._host_bytes = torch.zeros(self.memory.size_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        host, at = self._host_bytes.numpy(), self.memory

        def view(offset: int, count: int, dtype: Any) -> NDArray[Any]:
            return host[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)

        self.header: NDArray[Any] = view(at.step_offset, 1, HEADER)
        self.sequences: NDArray[Any] = view(at.sequences_offset, lanes, STEP_SEQUENCE)
        self.tokens: NDArray[np.uint32] = view(at.tokens_offset, step_tokens, np.uint32)
        self.out_tokens: NDArray[np.uint32] = view(at.out_tokens_offset, lanes, np.uint32)
        tables = view(at.block_tables_offset, lanes * lane_pages, np.uint32)
        self.block_tables: NDArray[np.uint32] = tables.reshape(lanes, lane_pages)

    @classmethod
    def like(cls, memory: StepMemory, device: torch.device) -> "OwnMemory":
        return cls(
            device,
            lanes=memory.lanes,
            step_tokens=memory.step_tokens,
            lane_pages=memory.lane_pages,
            pages=memory.pages,
        )

    def upload(self) -> None:
        """Everything, on the current stream, which the caller waits for before writing the arrays again."""
        self._device_bytes.copy_(self._host_bytes, non_blocking=True)

    def download(self) -> None:
        """done_step, error and out_tokens, on the current stream; there once it has been waited for."""
        for begin, size in ((0, STEP_HEADER_BYTES), (self.memory.out_tokens_offset, self.out_tokens.nbytes)):
            part = slice(begin, begin + size)
            self._host_bytes[part].copy_(self._device_bytes[part], non_blocking=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._device_bytes = self._device_bytes[:0]
