"""One step as a sequence of kernels: what a graph records (B8-B10).

Nothing here looks at the step's values: every kernel finds its work in engine memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton

from services.gpu_backend.engine import StepKind
from services.gpu_backend.engines.cuda.additions import Additions
from services.gpu_backend.engines.cuda.attention import PagedAttention
from services.gpu_backend.engines.cuda.buffers import Buffers
from services.gpu_backend.engines.cuda.gemms import Gemms
from services.gpu_backend.engines.cuda.memory_views import StepTensors
from services.gpu_backend.engines.cuda.step_kernels import gather_last, unpack_decode, unpack_prefill
from services.gpu_backend.models.llama import Llama

Gate = Callable[[int, int, StepTensors], None]
"""gate(layer, layers, step), before each layer of a prefill step, and behind the last one (D6)."""


@dataclass(frozen=True, slots=True)
class Tail:
    """How a step ends: sample(logits[rows, vocab], step), then finish(step), which raises done_step."""

    sample: Callable[[torch.Tensor, StepTensors], None]
    finish: Callable[[StepTensors], None]


class StepProgram:
    """Launches the kernels of a step on the current stream."""

    def __init__(
        self,
        model: Llama,
        buffers: Buffers,
        attention: PagedAttention,
        additions: Additions,
        gemms: Callable[[int], Gemms],
        tail: Tail,
        gate: Gate | None = None,
    ) -> None:
        """gemms: those for a number of rows."""
        self._model = model
        self._buffers = buffers
        self._attention = attention
        self._additions = additions
        self._gemms = gemms
        self._tail = tail
        self._gate = gate
        self._width = triton.next_power_of_2(model.config.hidden)

    def run(self, kind: StepKind, size: int, step: StepTensors) -> None:
        """A step of up to `size` sequences (decode) or tokens (prefill)."""
        sampled = self._decode(size, step) if kind is StepKind.DECODE else self._prefill(size, step)
        logits = self._buffers.logits[: len(sampled)]
        self._gemms(len(sampled)).normed(len(sampled), sampled, self._model.norm, self._model.head, logits)
        self._tail.sample(logits, step)
        self._tail.finish(step)

    def _decode(self, rows: int, step: StepTensors) -> torch.Tensor:
        buffers, config = self._buffers, self._model.config
        unpack_decode[(rows,)](
            step.sequences, step.sequence_count, step.tokens, self._model.embedding, buffers.hidden,
            buffers.positions, buffers.row_lanes, buffers.split_pages, step.error,
            config.vocab, config.hidden, rows, self._attention.split_target(),
            ROWS=triton.next_power_of_2(rows), WIDTH=self._width,
        )  # fmt: skip
        self._layers(rows, lambda layer: self._attention.decode(layer, rows, step))
        return buffers.hidden[:rows]

    def _prefill(self, rows: int, step: StepTensors) -> torch.Tensor:
        buffers, config = self._buffers, self._model.config
        lanes = len(step.sequences)
        unpack_prefill[(rows,)](
            step.sequences, step.sequence_count, step.tokens, self._model.embedding, buffers.hidden,
            buffers.positions, buffers.row_lanes, buffers.first_single, buffers.split_pages, step.error,
            config.vocab, config.hidden, lanes, self._attention.split_target(),
            SEQUENCES=triton.next_power_of_2(lanes), WIDTH=self._width,
        )  # fmt: skip
        self._layers(rows, lambda layer: self._attend_prefill(layer, rows, step))
        self._pass(config.layers, step)
        last = buffers.last[: min(rows, lanes)]
        gather_last[(len(last),)](
            step.sequences, step.sequence_count, buffers.hidden, last, config.hidden, rows, WIDTH=self._width
        )
        return last

    def _attend_prefill(self, layer: int, rows: int, step: StepTensors) -> None:
        self._pass(layer, step)
        self._attention.prefill(layer, rows, step)

    def _pass(self, layer: int, step: StepTensors) -> None:
        if self._gate is not None:
            self._gate(layer, self._model.config.layers, step)

    def _layers(self, rows: int, attend: Callable[[int], None]) -> None:
        buffers, gemms = self._buffers, self._gemms(rows)
        for index, layer in enumerate(self._model.layers):
            gemms.normed(rows, buffers.hidden, layer.attention_norm, layer.qkv, buffers.qkv)
            self._additions.apply(rows, layer, buffers.qkv)
            attend(index)
            gemms.added(rows, buffers.attended, layer.output, buffers.hidden)
            gemms.gated(rows, buffers.hidden, layer.mlp_norm, layer.gate_up, buffers.activated)
            gemms.added(rows, buffers.activated, layer.down, buffers.hidden)
