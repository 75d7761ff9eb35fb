"""The same graphs launched by the host: copy the step in, launch, wait, copy the tokens out.

The baseline that the resident scheduler is measured against (B Figure 3), and how graphs are tested. Its best form
queues a step before it has read the last one's tokens: scheduler/overlap.py decides that, `begin_ahead` does it.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from services.gpu_backend.engine import EngineError, ModelGeometry, StepKind, StepView
from services.gpu_backend.engines.cuda.contract import CaptureProgress, no_progress
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.feed import feed_tokens
from services.gpu_backend.engines.cuda.own_memory import OwnMemory, StepImage
from services.gpu_backend.engines.cuda.program import Gate

IMAGES = 3
"""Steps that may be queued at once: one that runs, one ahead of it, and one ahead of the last that was in vain."""


@dataclass(slots=True)
class Flight:
    """A step that is queued on the stream, or done."""

    image: StepImage
    number: int = 0
    done: torch.cuda.Event = field(default_factory=torch.cuda.Event)


class HostDrivenGraphEngine:
    """An `Engine`, so that HostScheduler can drive it, and an `OverlappingEngine` for OverlapScheduler."""

    def __init__(self, engine: CudaGraphEngine, max_context: int, progress: CaptureProgress = no_progress) -> None:
        """max_context: most positions of a lane, at most the model's. `close` closes `engine` too."""
        self._engine = engine
        self._lane_pages = -(-max_context // 64)
        self._progress = progress
        self._graphs: dict[tuple[StepKind, int], torch.cuda.CUDAGraph] = {}
        self._stream = torch.cuda.Stream(engine.kv_pool.device)
        self._own: OwnMemory | None = None
        self._flights: list[Flight] = []
        self._steps = 0

    @property
    def geometry(self) -> ModelGeometry:
        return self._engine.geometry

    @property
    def kv_pages(self) -> NDArray[np.uint8]:
        """u8[pages, 0]: the pages lie in device memory, where numpy can't reach; only their number is told."""
        return np.empty((len(self._engine.kv_pool), 0), np.uint8)

    @property
    def own(self) -> OwnMemory:
        assert self._own is not None, "allocate comes first"
        return self._own

    def allocate(self, pages: int, lanes: int, step_tokens: int, gate: Gate | None = None) -> None:
        """Also captures every graph, largest first. gate: as CudaGraphEngine.allocate."""
        self._engine.allocate(pages, lanes, step_tokens, gate)
        device = self._engine.kv_pool.device
        own = OwnMemory(device, lanes=lanes, step_tokens=step_tokens, lane_pages=self._lane_pages, pages=pages)
        self._own = own
        self._flights = [Flight(own.image), *(Flight(own.new_image()) for _ in range(IMAGES - 1))]
        feed_tokens(own, 0)  # compiles it
        torch.cuda.synchronize(device)
        shapes = [(kind, size) for kind in StepKind for size in reversed(self._engine.graph_sizes(kind))]
        for kind, size in shapes:
            graph = self._engine.capture_graph(kind, size, own.memory)
            graph.instantiate()
            self._graphs[kind, size] = graph
            self._progress(kind, size, len(self._graphs), len(shapes))

    def step(self, view: StepView) -> None:
        count = view.sequence_count
        rows = view.sequences[:count]
        sampled = np.flatnonzero((rows["sample"] == 1) & (rows["token_count"] != 0))
        view.out_tokens[sampled] = self.tokens_of(self.begin(view))[sampled]

    def begin(self, view: StepView) -> Flight:
        """Queues the step and returns."""
        count, tokens = view.sequence_count, view.token_count
        flight = self._next_flight()
        image = flight.image
        image.sequences[:count] = view.sequences[:count]
        image.tokens[:tokens] = view.tokens[:tokens]
        size = count if view.kind is StepKind.DECODE else tokens
        self._queue(flight, view.kind, size, count, tokens, view.block_tables)
        return flight

    def begin_ahead(self, foreseen: NDArray[Any], block_tables: NDArray[np.uint32]) -> Flight:
        """Queues a decode step behind the one that was queued last, whose tokens it takes.

        foreseen      FORESEEN[1 to lanes]
        block_tables  u32[lanes, lane_pages]
        """
        count = len(foreseen)
        flight = self._next_flight()
        image = flight.image
        image.sequences[:count] = foreseen["sequence"]
        image.tokens[:count] = foreseen["token"]
        image.sources[:count] = foreseen["source"].view(np.int32)
        self._queue(flight, StepKind.DECODE, count, count, count, block_tables, fed=count)
        return flight

    def tokens_of(self, flight: Flight) -> NDArray[np.uint32]:
        """Waits for the step: u32[lanes], by rows; valid until two more steps were begun. Raises EngineError."""
        flight.done.synchronize()
        header = flight.image.header[0]
        if int(header["done_step"]) != flight.number:
            raise EngineError(f"step {flight.number}'s graph ended without raising done_step")
        if header["error"]:
            raise EngineError(
                f"step {flight.number} failed on the GPU: logits that are not finite, a token outside the vocabulary, "
                "or sampling parameters out of range"
            )
        return flight.image.out_tokens

    def launch(self, kind: StepKind, size: int) -> None:
        """The step that lies in `own`, by the smallest graph that holds `size`; waits for its end."""
        header = self.own.header
        flight = Flight(self.own.image, int(header["step"][0]))
        self._launch(flight, kind, size)
        flight.done.synchronize()
        if int(header["done_step"][0]) != flight.number:
            raise EngineError(f"the {kind.name.lower()} graph ended without raising done_step")

    def graph(self, kind: StepKind, size: int) -> torch.cuda.CUDAGraph:
        """The captured graph of exactly this shape, for measuring."""
        return self._graphs[kind, size]

    def close(self) -> None:
        self._stream.synchronize()  # a step that was queued in vain may run yet
        self._graphs.clear()
        self._engine.close()

    def _next_flight(self) -> Flight:
        """The one that was queued longest ago; its image may be written."""
        self._steps += 1
        flight = self._flights[self._steps % IMAGES]
        flight.done.synchronize()
        flight.number = self._steps
        return flight

    def _queue(
        self, flight: Flight, kind: StepKind, size: int, sequences: int, tokens: int,
        block_tables: NDArray[np.uint32], fed: int = 0,
    ) -> None:  # fmt: skip
        header = flight.image.header
        header["step"], header["kind"], header["error"] = flight.number, kind, 0
        header["sequence_count"], header["token_count"] = sequences, tokens
        rows, columns = block_tables.shape
        flight.image.block_tables[:rows, :columns] = block_tables
        self._launch(flight, kind, size, fed)

    def _launch(self, flight: Flight, kind: StepKind, size: int, fed: int = 0) -> None:
        sizes = self._engine.graph_sizes(kind)
        graph = self._graphs[kind, sizes[bisect_left(sizes, size)]]
        with torch.cuda.stream(self._stream):
            self.own.upload(flight.image)
            if fed:
                feed_tokens(self.own, fed)
            graph.replay()
            self.own.download(flight.image)
            flight.done.record()
