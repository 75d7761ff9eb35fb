"""The program of the CUDA graph engine on a CPU: Triton's interpreter, torch's GEMMs, sampling.cuh by g++.

Run with TRITON_INTERPRET=1. Everything but skinny.cu and the capture is what runs on a GPU.
"""

import torch

from services.gpu_backend.engine import PAGE_TOKENS, ModelGeometry, StepView
from services.gpu_backend.engines.cuda.additions import Additions
from services.gpu_backend.engines.cuda.attention import PagedAttention, most_splits, rotation_table
from services.gpu_backend.engines.cuda.buffers import Buffers
from services.gpu_backend.engines.cuda.gemms import LibraryGemms
from services.gpu_backend.engines.cuda.memory_views import StepTensors, tensors_of
from services.gpu_backend.engines.cuda.own_memory import OwnMemory
from services.gpu_backend.engines.cuda.products import Products
from services.gpu_backend.engines.cuda.program import StepProgram, Tail
from services.gpu_backend.engines.cuda.settings import Singles
from services.gpu_backend.models.llama import Llama

PROGRAMS = 12


class InterpretedEngine:
    def __init__(self, model: Llama, max_context: int, singles: Singles) -> None:
        self._model = model
        self._max_context = max_context
        self._singles = singles

    def allocate(self, pages: int, lanes: int, step_tokens: int) -> None:
        config, device = self._model.config, self._model.device
        shape = (pages, config.layers, 2, PAGE_TOKENS, config.kv_heads, config.head_dim)
        self.pool = torch.full(shape, float("nan"), dtype=self._model.dtype)
        splits = max(n * most_splits(n, config.kv_heads, PROGRAMS) for n in range(1, lanes + 1))
        self.buffers = Buffers.allocate(config, self._model.dtype, device, rows=step_tokens, lanes=lanes, splits=splits)
        self.own = OwnMemory(
            device, lanes=lanes, step_tokens=step_tokens, lane_pages=self._max_context // PAGE_TOKENS, pages=pages
        )
        attention = PagedAttention(
            config, self.pool, rotation_table(config, self._model.frequencies), self.buffers, PROGRAMS, False,
            self._singles,
        )  # fmt: skip
        library = LibraryGemms(config.rms_epsilon, self.buffers, Products([], device, 0), overlap=False)
        self._program = StepProgram(
            self._model, self.buffers, attention, Additions(config, overlap=False), lambda rows: library,
            Tail(self._sample, self._finish),
        )  # fmt: skip

    def step(self, view: StepView) -> None:
        own = self.own
        own.header["step"] += 1
        own.header["sequence_count"], own.header["token_count"] = view.sequence_count, view.token_count
        own.sequences[: len(view.sequences)] = view.sequences
        own.sequences["token_count"][view.sequence_count :] = 7  # stale: padding whatever it says
        own.tokens[: len(view.tokens)] = view.tokens
        own.block_tables[:, : view.block_tables.shape[1]] = view.block_tables
        own.upload()
        with torch.no_grad():
            size = view.sequence_count if view.kind == 2 else view.token_count
            self._program.run(view.kind, size + 1, tensors_of(own.memory, torch.device("cpu")))
        own.download()
        assert own.header["done_step"] == own.header["step"]
        assert own.header["error"] == 0
        sampled = view.sequences["sample"] == 1
        view.out_tokens[sampled] = own.out_tokens[: len(view.out_tokens)][sampled]

    def _sample(self, logits: torch.Tensor, step: StepTensors) -> None:
        step.out_tokens[: len(logits)] = logits.argmax(-1).to(torch.int32)

    def _finish(self, step: StepTensors) -> None:
        step.done_step.copy_(step.step)

    @property
    def geometry(self) -> ModelGeometry:
        raise NotImplementedError

    def close(self) -> None:
        pass
