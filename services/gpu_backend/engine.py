"""What the scheduler and the KV agent see of an engine: geometry, KV pages, one call a step (B8, B10).

A step's inputs and outputs lie in engine memory (`scheduler/step.hpp`); `StepView` is numpy's view
of it. Nothing here knows torch, so that the scheduler's thread can be tested without it.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from services.gpu_backend.layers import LayerCounters

PAGE_TOKENS = 64  # ring.hpp's kPageTokens; tests compare the two
"""Tokens of a KV page, which is also a storage block (D4)."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "uint32": 4}

STEP_SEQUENCE = np.dtype(
    [
        ("lane", "<u4"),
        ("token_begin", "<u4"),
        ("token_count", "<u4"),
        ("position", "<u4"),
        ("sample", "<u4"),
        ("temperature", "<f4"),
        ("top_p", "<f4"),
        ("top_k", "<u4"),
        ("uniform", "<f4"),
        ("slot", "<u4"),
        ("generation", "<u4"),
        ("hands_over", "<u4"),
    ]
)
"""The fields of step.hpp's StepSequence, by the same names. Whoever makes views checks the offsets."""


class StepKind(IntEnum):
    """step.hpp's StepKind."""

    PREFILL = 1
    DECODE = 2


class EngineError(RuntimeError):
    """The engine can't do what was asked; the message names the thing that is wrong.

    Raised by `allocate` when memory doesn't suffice, and by `step` when the step doesn't hold together
    or its numbers broke down. After a failed step, KV that the step was to write is undefined.
    """


@dataclass(frozen=True)
class ModelGeometry:
    """Shape of a model as far as memory and scheduling need it.

    `identity` names the weights and everything else that KV values depend on, dtype and shape aside.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context: int
    dtype: str
    identity: str

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "kv_heads", "head_dim", "vocab", "max_context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(ITEM_BYTES)}")

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """Of a Full Block (D5): [layers, K and V, tokens, kv_heads, head_dim]."""
        return (self.layers, 2, PAGE_TOKENS, self.kv_heads, self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of a Full Block, which are the bytes of a KV page."""
        return int(np.prod(self.block_shape)) * ITEM_BYTES[self.dtype]

    @property
    def layer_bytes(self) -> int:
        """Bytes of a Layer Block (D5)."""
        return self.block_bytes // self.layers

    @property
    def kv_layout(self) -> str:
        """Part of every block key: equal only for engines whose KV can be exchanged."""
        shape = "x".join(str(n) for n in self.block_shape)
        return f"{self.identity}/{self.dtype}/{shape}"


@dataclass(frozen=True)
class StepView:
    """One step. Arrays are views of engine memory, valid until `Engine.step` returns.

    sequences    STEP_SEQUENCE[>= sequence_count]; rows with token_count 0 are padding
    tokens       u32[>= token_count]: new tokens, found through token_begin and token_count
    block_tables u32[lanes, lane_pages]: page of each 64 positions of a lane
    out_tokens   u32[>= sequence_count]: written by the engine where sample is 1, else left alone
    layers       for engines that wait for each layer's KV, and tell what they have computed (D6); None: all is there
    """

    kind: StepKind
    sequence_count: int
    token_count: int
    sequences: NDArray[Any]
    tokens: NDArray[np.uint32]
    block_tables: NDArray[np.uint32]
    out_tokens: NDArray[np.uint32]
    layers: "LayerCounters | None" = None


class Engine(Protocol):
    """Computes steps over paged KV. `step` is called by one thread at a time.

    Several sequences of any length may share a step, whatever its kind; no two of them may share a
    lane. For each sequence the KV of its new tokens is written to the pages of its block table, its
    tokens attend to all positions up to their own, and where sample is 1 a token is drawn after the
    last one.
    """

    @property
    def geometry(self) -> ModelGeometry: ...

    @property
    def kv_pages(self) -> NDArray[np.uint8]:
        """Writable u8[pages, block_bytes]: row p is page p over all layers, a Full Block (D5).

        Others may read and write pages that the step under way does not name. Empty before `allocate`.
        """
        ...

    def allocate(self, pages: int, lanes: int, step_tokens: int) -> None:
        """Makes the KV pages, and buffers for the largest step. Called once, before the first step.

        Raises EngineError when memory doesn't suffice, saying how many pages would fit.
        """
        ...

    def step(self, view: StepView) -> None:
        """Computes a step and writes its tokens. Raises EngineError; see there."""
        ...

    def close(self) -> None:
        """Gives memory back. Idempotent; no step may follow."""
        ...


class LayeredEngine(Engine, Protocol):
    """An engine that minds StepView.layers (D6).

    Its pages may hold a few layers at a time: then a row of `kv_pages` is u8[resident layers' bytes], layer n lies
    where layer n - resident lay, and it can only prefill.
    """

    @property
    def resident_layers(self) -> int: ...


def resident_layers(wanted: int, geometry: ModelGeometry) -> int:
    """`wanted` of the model's layers, 0: all. Raises EngineError."""
    if wanted > geometry.layers:
        raise EngineError(f"{wanted} layers are to be resident, the model has {geometry.layers}")
    return wanted or geometry.layers
