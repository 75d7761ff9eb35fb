"""The torch engine, run eagerly on a CPU: one forward pass a step over all its sequences.

Numbers: float32 throughout, or bfloat16 with float32 norms, rotations, softmax and sampling. A row's
values may differ in their last bits with the number of rows beside it, since the BLAS picks its kernel
by shape; sampling adds nothing to that.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from services.gpu_backend.engine import EngineError, ModelGeometry, StepView, resident_layers
from services.gpu_backend.engines.host_memory import available_bytes
from services.gpu_backend.engines.paged_attention import GatherBuffer, PagedAttention
from services.gpu_backend.engines.plan import plan_step
from services.gpu_backend.engines.sampling import sample
from services.gpu_backend.layers import layers_of
from services.gpu_backend.models.registry import LoadedModel

_DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

_CACHE_BYTES = 2 << 20
"""K and V that one group of sequences gathers of a layer: little enough to be in cache when attended to."""


@dataclass(frozen=True)
class TorchSettings:
    """threads: for one step, of the whole process's torch; 0 leaves torch's choice. resident_layers: that a page
    holds at a time; 0: all (LayeredEngine)."""

    threads: int = 0
    resident_layers: int = 0


def geometry_of(loaded: LoadedModel) -> ModelGeometry:
    config = loaded.model.config
    return ModelGeometry(
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab,
        max_context=config.max_context,
        dtype=_DTYPE_NAMES[loaded.model.dtype],
        identity=loaded.identity,
    )


class TorchEngine:
    """An `Engine` on the CPU. It owns the KV pool; the model may be shared."""

    def __init__(self, loaded: LoadedModel, settings: TorchSettings) -> None:
        if loaded.model.device.type != "cpu":
            raise EngineError(f"this engine runs on a CPU; the model is on {loaded.model.device}")
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._model = loaded.model
        self._geometry = geometry_of(loaded)
        self._resident = resident_layers(settings.resident_layers, self._geometry)
        self._page_shape = (self._resident, *self._geometry.block_shape[1:])
        self._pool = torch.empty((0, *self._page_shape), dtype=loaded.model.dtype)
        self._buffer = GatherBuffer.like(self._pool)
        self._group_pages = max(1, _CACHE_BYTES // self._geometry.layer_bytes)

    @property
    def geometry(self) -> ModelGeometry:
        return self._geometry

    @property
    def resident_layers(self) -> int:
        return self._resident

    @property
    def kv_pages(self) -> NDArray[np.uint8]:
        return self._pool.view(torch.uint8).view(len(self._pool), self._resident * self._geometry.layer_bytes).numpy()

    def allocate(self, pages: int, lanes: int, step_tokens: int) -> None:
        block_bytes = self._resident * self._geometry.layer_bytes
        room = max(0, available_bytes() - self._step_bytes(lanes, step_tokens))
        if pages * block_bytes > room:
            raise EngineError(
                f"{pages} KV pages of {block_bytes} bytes are {pages * block_bytes} bytes, but {room} are "
                f"available beside a step of {step_tokens} tokens: at most {room // block_bytes} pages fit"
            )
        # zeros, because memory that is masked out still must not hold a NaN
        self._pool = torch.zeros((pages, *self._page_shape), dtype=self._model.dtype)
        self._buffer = GatherBuffer.like(self._pool)

    def step(self, view: StepView) -> None:
        plan = plan_step(view, self._geometry, len(self._pool), self._group_pages)
        if not len(plan.tokens):
            return
        with torch.inference_mode(), layers_of(view) as layers:
            attention = PagedAttention(self._pool, self._buffer, plan, layers)
            hidden = self._model.forward(torch.from_numpy(plan.tokens), torch.from_numpy(plan.positions), attention)
            whole = ~np.isin(view.sequences["lane"][plan.sampled_sequences], list(layers.lost))
            rows, sequences = plan.sampled_rows[whole], plan.sampled_sequences[whole]
            if len(rows):
                logits = self._model.logits(hidden[torch.from_numpy(rows)])
                view.out_tokens[sequences] = sample(logits, view, sequences)

    def _step_bytes(self, lanes: int, step_tokens: int) -> int:
        """About what the largest step takes beside the pool: activations, one layer's KV, logits."""
        config, item = self._model.config, self._model.dtype.itemsize
        widths = 3 * config.intermediate + 4 * config.hidden + 3 * config.heads * config.head_dim
        gathered = 2 * config.max_context * config.kv_heads * config.head_dim
        logits = 4 * lanes * config.vocab
        return step_tokens * (widths * item + config.max_context) + gathered * item + 2 * logits

    def close(self) -> None:
        self._pool = torch.empty((0, *self._page_shape), dtype=self._model.dtype)
        self._buffer = GatherBuffer.like(self._pool)
