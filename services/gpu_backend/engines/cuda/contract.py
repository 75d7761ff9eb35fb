"""What the scheduler on the GPU and an engine of CUDA graphs agree on (B3, B5, B8-B10).

The scheduler allocates engine memory (scheduler/step.hpp) in device memory, and has the engine capture
one graph a shape over it. Then it launches the graphs from the device; no host code runs a step.
Addresses are device pointers as ints, so that neither side needs the other's CUDA library.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.engine import ModelGeometry, StepKind
from services.gpu_backend.layers import LayerCounters
from services.gpu_backend.scheduler.memory import header_offset

CaptureProgress = Callable[[StepKind, int, int, int], None]
"""(kind, size, graphs captured, graphs in all); called after each capture. May raise, to stop."""


def no_progress(kind: StepKind, size: int, done: int, total: int) -> None:
    """Progress that nobody looks at."""


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Engine memory of one scheduler, in device memory. Fixed for the life of every graph over it.

    Offsets are bytes from `address`, all multiples of 64; STEP_HEADER and STEP_SEQUENCE are numpy
    dtypes of scheduler/memory.py and engine.py.

    step           STEP_HEADER: step u64, kind u32, sequence_count u32, token_count u32, graph u32, and
                   at byte 64 done_step u64, error u32
    sequences      STEP_SEQUENCE[lanes]
    tokens         u32[step_tokens]
    out_tokens     u32[lanes]
    block_tables   u32[lanes, lane_pages]
    """

    address: int
    size_bytes: int
    lanes: int
    step_tokens: int
    lane_pages: int
    pages: int
    step_offset: int
    sequences_offset: int
    tokens_offset: int
    out_tokens_offset: int
    block_tables_offset: int

    @property
    def done_step(self) -> int:
        """Address of the u64 that a graph's last node sets to the header's `step`."""
        return self.address + self.step_offset + header_offset("done_step")

    @property
    def error(self) -> int:
        """Address of the u32 that a graph may set to not 0: the step could not be computed."""
        return self.address + self.step_offset + header_offset("error")


class StepGate(Protocol):
    """What prefill graphs wait at, layer by layer (D6)."""

    def connect(self, words: int, memory: NDArray[np.uint8], offset: int) -> LayerCounters:
        """Before the first step. words: address of layers_ready (step.hpp) for the GPU; for this process it is at
        `offset` of `memory`."""
        ...


class GraphEngine(Protocol):
    """Captures steps as CUDA graphs. Called by one thread, all of it before the scheduler starts."""

    @property
    def geometry(self) -> ModelGeometry: ...

    def graph_sizes(self, kind: StepKind) -> Sequence[int]:
        """Shapes to capture, ascending: sequences of a decode step, tokens of a prefill step.

        The last is the largest shape, the fallback (B8): `lanes` and `step_tokens` as given to `allocate`.
        """
        ...

    def allocate(self, pages: int, lanes: int, step_tokens: int) -> None:
        """KV pages and all buffers of the largest step, in device memory. As Engine.allocate."""
        ...

    def capture(self, kind: StepKind, size: int, memory: StepMemory) -> int:
        """Captures the step of this shape; returns a cudaGraph_t, which stays the engine's until `close`.

        The scheduler instantiates the graph twice for device launch (two executables in turn: one that
        has signalled may not have retired yet) and uploads both. So it may hold kernels, device-to-device
        copies and memsets on one device only; no host nodes, no allocations, no collectives.

        Called largest shape first. A launch of the graph, for any step that fits the shape:
        1. finds its work in `memory`: everything that the host might have planned (lengths, positions,
           page numbers, sampling inputs) is read there by the kernels themselves. Rows of `sequences` with
           token_count 0, and rows from sequence_count on, are padding: nothing is computed for them that
           is seen anywhere, and no page is written;
        2. writes the KV of new tokens to their pages, and out_tokens[i] where sequences[i].sample is 1;
        3. may set `error`, before the end, if the numbers broke down (the scheduler set it to 0);
        4. ends with a kernel node of one thread, after everything else, that stores the header's `step`
           to done_step with release at device scope (or wider).
        Padding never faults, whatever its stale fields say. `lane` and pages of live rows are always in range.

        Raises EngineError, naming kind, size and bytes, if the graph can't be captured.
        """
        ...

    def close(self) -> None:
        """Gives graphs and memory back. The scheduler has stopped, and its executables are gone. Idempotent."""
        ...
