"""The same graphs launched by the host: copy the step in, launch, wait, copy the tokens out.

The baseline that the resident scheduler is measured against (B Figure 3), and how graphs are tested.
"""

from bisect import bisect_left

import numpy as np
import torch
from numpy.typing import NDArray

from services.gpu_backend.engine import EngineError, ModelGeometry, StepKind, StepView
from services.gpu_backend.engines.cuda.contract import CaptureProgress, no_progress
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.own_memory import OwnMemory


class HostDrivenGraphEngine:
    """An `Engine`, so that HostScheduler can drive it."""

    def __init__(self, engine: CudaGraphEngine, max_context: int, progress: CaptureProgress = no_progress) -> None:
        """max_context: most positions of a lane, at most the model's. `close` closes `engine` too."""
        self._engine = engine
        self._lane_pages = -(-max_context // 64)
        self._progress = progress
        self._graphs: dict[tuple[StepKind, int], torch.cuda.CUDAGraph] = {}
        self._stream = torch.cuda.Stream(engine.kv_pool.device)
        self._own: OwnMemory | None = None
        self._steps = 0

    @property
    def geometry(self) -> ModelGeometry:
        return self._engine.geometry

    @property
    def kv_pages(self) -> NDArray[np.uint8]:
        """u8[pages, 0]: the pages lie in device memory, where numpy can't reach; only their number is told.

        So no KV agent can serve this engine.
        """
        return np.empty((len(self._engine.kv_pool), 0), np.uint8)

    @property
    def own(self) -> OwnMemory:
        assert self._own is not None, "allocate comes first"
        return self._own

    def allocate(self, pages: int, lanes: int, step_tokens: int) -> None:
        """Also captures every graph, largest first."""
        self._engine.allocate(pages, lanes, step_tokens)
        device = self._engine.kv_pool.device
        self._own = OwnMemory(device, lanes=lanes, step_tokens=step_tokens, lane_pages=self._lane_pages, pages=pages)
        torch.cuda.synchronize(device)
        shapes = [(kind, size) for kind in StepKind for size in reversed(self._engine.graph_sizes(kind))]
        for kind, size in shapes:
            graph = self._engine.capture_graph(kind, size, self._own.memory)
            graph.instantiate()
            self._graphs[kind, size] = graph
            self._progress(kind, size, len(self._graphs), len(shapes))

    def step(self, view: StepView) -> None:
        own = self.own
        self._steps += 1
        count, tokens = view.sequence_count, view.token_count
        own.header["step"], own.header["kind"], own.header["error"] = self._steps, view.kind, 0
        own.header["sequence_count"], own.header["token_count"] = count, tokens
        own.sequences[:count] = view.sequences[:count]
        own.tokens[:tokens] = view.tokens[:tokens]
        rows, columns = view.block_tables.shape
        own.block_tables[:rows, :columns] = view.block_tables
        sampled = np.flatnonzero((own.sequences["sample"][:count] == 1) & (own.sequences["token_count"][:count] != 0))
        self.launch(view.kind, count if view.kind is StepKind.DECODE else tokens)
        if own.header["error"][0]:
            raise EngineError(
                f"step {self._steps} failed on the GPU: logits that are not finite, a token outside the vocabulary, "
                "or sampling parameters out of range"
            )
        view.out_tokens[sampled] = own.out_tokens[sampled]

    def launch(self, kind: StepKind, size: int) -> None:
        """The step that lies in `own`, by the smallest graph that holds `size`; waits for its end."""
        sizes = self._engine.graph_sizes(kind)
        graph = self._graphs[kind, sizes[bisect_left(sizes, size)]]
        with torch.cuda.stream(self._stream):
            self.own.upload()
            graph.replay()
            self.own.download()
        self._stream.synchronize()
        if int(self.own.header["done_step"][0]) != int(self.own.header["step"][0]):
            raise EngineError(f"the {kind.name.lower()} graph ended without raising done_step")

    def graph(self, kind: StepKind, size: int) -> torch.cuda.CUDAGraph:
        """The captured graph of exactly this shape, for measuring."""
        return self._graphs[kind, size]

    def close(self) -> None:
        self._graphs.clear()
        self._engine.close()
