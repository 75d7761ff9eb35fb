"""The scheduler of a machine without a GPU: the core on a native thread, the engine on another.

The same core as on the device (core.hpp). It launches a "graph" by handing the step to the engine
thread, which calls `Engine.step` and reports back; nothing here decides anything.
"""

import logging
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend import _scheduler
from services.gpu_backend._scheduler import Command
from services.gpu_backend.engine import Engine
from services.gpu_backend.layers import LayerCounters
from services.gpu_backend.scheduler.interface import SchedulerLost
from services.gpu_backend.scheduler.memory import EngineMemory
from services.gpu_backend.scheduler.orders import OrderQueue
from services.gpu_backend.scheduler.settings import SchedulerSettings

log = logging.getLogger(__name__)

LOOK_S = 0.5  # how often the engine thread looks whether it is to end


def native_scheduler(
    ring: NDArray[np.uint8],
    settings: SchedulerSettings,
    *,
    max_context: int,
    vocab_size: int,
    launch_window: int = 0,
) -> _scheduler.HostScheduler:
    """The core over a ring whose header says the same max_context, vocab_size and pages.

    launch_window: launches until the loop is begun anew (B4); 0: never, as a host has no need of it. Raises
    ValueError where ring and settings don't fit together.
    """
    return _scheduler.HostScheduler(
        ring=ring,
        settings=settings.core(max_context, vocab_size),
        decode_graphs=settings.decode_shapes,
        prefill_graphs=settings.prefill_shapes,
        launch_window=launch_window,
    )


class HostScheduler:
    """Serves the ring with the engine from `start` to `stop`. The engine is allocated, and stays the caller's.

    A step that raises ends its requests with Finish.ENGINE_ERROR; the others go on.
    """

    def __init__(
        self,
        ring: NDArray[np.uint8],
        engine: Engine,
        settings: SchedulerSettings,
        *,
        max_context: int,
        layers: Callable[[EngineMemory], LayerCounters] | None = None,
    ) -> None:
        """`max_context` and the engine's vocabulary must be what the ring's header says. `layers`: counters for an
        engine that minds StepView.layers. Raises ValueError."""
        vocab_size = engine.geometry.vocab
        self._native = native_scheduler(ring, settings, max_context=max_context, vocab_size=vocab_size)
        self._engine = engine
        self._thread = threading.Thread(target=self._compute, name="engine", daemon=True)
        self.settings = settings
        self.memory = EngineMemory(self._native)
        self.orders = OrderQueue(self._native, self.memory)
        self.layers = layers(self.memory) if layers else None

    def start(self) -> None:
        """Once."""
        self._native.start()
        self._thread.start()

    def drain(self) -> None:
        """New requests are refused with Finish.DRAINING; those that were claimed go on."""
        self._native.command(Command.DRAIN)

    def stop(self, timeout_s: float) -> None:
        """Ends every request and both threads; idempotent. Blocks.

        Raises TimeoutError if the engine's step doesn't return in time; then the threads live on.
        """
        self._native.command(Command.STOP)
        if not self._native.join(timeout_s):
            raise TimeoutError(f"the engine's step has not returned within {timeout_s:g} s")
        if self._thread.ident is not None:
            self._thread.join(LOOK_S + timeout_s)

    def tend(self) -> None:
        """Raises SchedulerLost when the engine's thread is gone and the loop goes on."""
        if self._thread.ident is not None and not self._thread.is_alive() and not self._native.ended():
            raise SchedulerLost("the thread that computes steps has ended")

    def close(self) -> None:
        """Nothing: what it holds goes with it."""

    def counters(self) -> dict[str, int]:
        """By the names of state.hpp's Counters; the gauges are as of the last turn."""
        return self._native.counters()

    @property
    def unfinished(self) -> int:
        """Requests claimed and not yet ended."""
        n = self.counters()
        return n["waiting"] + n["expecting"] + n["loading"] + n["prefilling"] + n["running"] + n["starved"]

    def check(self) -> None:
        """Raises AssertionError with the first thing in the core's books that doesn't add up."""
        if wrong := self._native.check():
            raise AssertionError(wrong)

    def poke(self) -> None:
        """Ends the loop's rest early: something has come."""
        self._native.poke()

    def _compute(self) -> None:
        while not self._native.ended():
            if (launch := self._native.next_launch(LOOK_S)) is None:
                continue
            error = 1
            try:
                self._engine.step(self.memory.step_view(self.layers))
                error = 0
            except Exception:
                log.exception("a step failed; its requests end with an error", extra={"step": launch[0]})
            finally:
                self._native.complete(launch[0], error)
