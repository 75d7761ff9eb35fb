"""The host-driven loop in its best form: the next step is queued before the last one's tokens are read.

The core decides as ever; beside it `foresee` tells which step will follow if nothing comes between. That one is
queued on the GPU, fed with tokens that no host has seen, while the one before still runs. When the core then asks
for a step, it is compared with what was foreseen: equal, and it runs already; else what was queued is in vain.
"""

import logging
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.engine import Engine, StepKind, StepView
from services.gpu_backend.scheduler.host import LOOK_S, HostScheduler
from services.gpu_backend.scheduler.memory import FORESEEN
from services.gpu_backend.scheduler.settings import SchedulerSettings

log = logging.getLogger(__name__)

F = TypeVar("F")

SAME = ("lane", "slot", "position", "sample", "temperature", "top_p", "top_k", "uniform")
"""What a step's sequence and the foreseen one must agree in; where they lie in the step doesn't matter."""


class OverlappingEngine(Engine, Protocol[F]):
    """An engine with a queue. Steps are computed in the order in which they were begun.

    A step that was begun in vain writes KV only at positions that no step has written since, of pages that its
    lanes held when it was begun; so it does no harm, unless somebody else fills pages beside the engine.
    """

    def begin(self, view: StepView) -> F: ...

    def begin_ahead(self, foreseen: NDArray[Any], block_tables: NDArray[np.uint32]) -> F:
        """A decode step of FORESEEN[n], behind the one begun last, whose tokens it takes."""
        ...

    def tokens_of(self, flight: F) -> NDArray[np.uint32]:
        """Waits: the tokens by rows. Raises EngineError."""
        ...


@dataclass(frozen=True)
class Ahead(Generic[F]):
    """A step that was begun before it was asked for."""

    flight: F
    sequences: NDArray[Any]

    def rows_of(self, view: StepView) -> NDArray[np.intp] | None:
        """Row here of each row of the step that is asked for; None if that is another step."""
        asked = view.sequences[: view.sequence_count]
        if view.kind is not StepKind.DECODE or len(asked) != len(self.sequences):
            return None
        rows = np.argsort(self.sequences["lane"])[np.argsort(np.argsort(asked["lane"]))]
        ours = self.sequences[rows]
        return rows if all(np.array_equal(ours[name], asked[name]) for name in SAME) else None


class OverlapScheduler(HostScheduler, Generic[F]):
    """HostScheduler with another engine thread. No KV agent may serve it: see OverlappingEngine."""

    def __init__(
        self,
        ring: NDArray[np.uint8],
        engine: OverlappingEngine[F],
        settings: SchedulerSettings,
        *,
        max_context: int,
    ) -> None:
        if settings.kv_orders:
            raise ValueError("kv_orders: steps that are begun ahead may write to pages that a KV agent fills")
        super().__init__(ring, engine, settings, max_context=max_context)
        self._queue = engine
        self.overlapped = 0
        """Steps that were begun before they were asked for."""

    def _compute(self) -> None:
        ahead: Ahead[F] | None = None
        while not self._native.ended():
            if (launch := self._native.next_launch(LOOK_S)) is None:
                continue
            error = 1
            try:
                ahead = self._fly(self.memory.step_view(), ahead)
                error = 0
            except Exception:
                ahead = None
                log.exception("a step failed; its requests end with an error", extra={"step": launch[0]})
            finally:
                self._native.complete(launch[0], error)

    def _fly(self, view: StepView, ahead: Ahead[F] | None) -> Ahead[F] | None:
        """Computes the step, and begins the one after it."""
        count = view.sequence_count
        rows = ahead.rows_of(view) if ahead is not None else None
        if ahead is None or rows is None:
            flight, rows = self._queue.begin(view), np.arange(count)
        else:
            flight = ahead.flight
            self.overlapped += 1
        following = self._begin_ahead(rows)
        sampled = view.sequences["sample"][:count] == 1
        view.out_tokens[:count][sampled] = self._queue.tokens_of(flight)[rows][sampled]
        return following

    def _begin_ahead(self, rows: NDArray[np.intp]) -> Ahead[F] | None:
        foreseen = self._native.foresee().view(FORESEEN)
        if not len(foreseen):
            return None
        from_flight = foreseen["source"] < len(rows)  # else it is _scheduler.NONE
        foreseen["source"][from_flight] = rows[foreseen["source"][from_flight]]
        flight = self._queue.begin_ahead(foreseen, self.memory.block_tables)
        return Ahead(flight, foreseen["sequence"].copy())
