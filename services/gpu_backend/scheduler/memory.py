"""Engine memory (step.hpp) as numpy sees it: the host build's own, so engine and KV agent share it.

Offsets and fields come from the native module; there is no second copy of the layout.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend import _scheduler
from services.gpu_backend.engine import STEP_SEQUENCE, StepKind, StepView
from services.gpu_backend.layers import LayerCounters

STEP_HEADER: np.dtype[np.void] = np.dtype(_scheduler.STEP_HEADER)
KV_ORDER: np.dtype[np.void] = np.dtype(_scheduler.KV_ORDER)
_foreseen: Any = {**_scheduler.FORESEEN, "formats": [STEP_SEQUENCE, *_scheduler.FORESEEN["formats"][1:]]}
FORESEEN: np.dtype[np.void] = np.dtype(_foreseen)

if np.dtype(_scheduler.STEP_SEQUENCE) != STEP_SEQUENCE:
    raise ImportError("engine.STEP_SEQUENCE differs from step.hpp's StepSequence; build the native modules again")


def header_offset(name: str) -> int:
    """Of a field of StepHeader, in bytes."""
    assert STEP_HEADER.fields is not None
    return int(STEP_HEADER.fields[name][1])


class EngineMemory:
    """Views that stay valid as long as this object lives.

    step_header   STEP_HEADER[1]
    sequences     STEP_SEQUENCE[lanes]
    tokens        u32[step_tokens]
    out_tokens    u32[lanes]
    block_tables  u32[lanes, lane_pages]
    orders        KV_ORDER[order_capacity]: order n is at n modulo the capacity
    """

    def __init__(self, native: _scheduler.HostScheduler) -> None:
        at = native.layout()
        self._buffer = native.engine_memory
        lanes, lane_pages = at["lanes"], at["lane_pages"]
        self.step_header: NDArray[Any] = self._view(at["step_offset"], 1, STEP_HEADER)
        self.sequences: NDArray[Any] = self._view(at["sequences_offset"], lanes, STEP_SEQUENCE)
        self.tokens: NDArray[np.uint32] = self._view(at["tokens_offset"], at["step_tokens"], np.dtype(np.uint32))
        self.out_tokens: NDArray[np.uint32] = self._view(at["out_tokens_offset"], lanes, np.dtype(np.uint32))
        tables = self._view(at["block_tables_offset"], lanes * lane_pages, np.dtype(np.uint32))
        self.block_tables: NDArray[np.uint32] = tables.reshape(lanes, lane_pages)
        self._layers_ready_at = at["layers_ready_offset"]
        self.orders: NDArray[Any] = self._view(at["orders_offset"], at["order_capacity"], KV_ORDER)

    def layer_counters(self, windowed: bool) -> LayerCounters:
        """A word a lane."""
        return LayerCounters(*self.layers_ready, windowed)

    @property
    def layers_ready(self) -> tuple[NDArray[np.uint8], int]:
        """Memory, and where in it u64[lanes] lie."""
        return self._buffer, self._layers_ready_at

    def _view(self, offset: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        return self._buffer[offset : offset + count * dtype.itemsize].view(dtype)

    def step_view(self, layers: LayerCounters | None = None) -> StepView:
        """The step in flight, between `next_launch` and `complete`."""
        header = self.step_header[0]
        return StepView(
            kind=StepKind(int(header["kind"])),
            sequence_count=int(header["sequence_count"]),
            token_count=int(header["token_count"]),
            sequences=self.sequences,
            tokens=self.tokens,
            block_tables=self.block_tables,
            out_tokens=self.out_tokens,
            layers=layers,
        )
