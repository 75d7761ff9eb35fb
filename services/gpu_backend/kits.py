"""A loaded model with what runs it: the engine, and the scheduler that fits it. One kit a kind of engine."""

from collections.abc import Callable
from typing import Protocol

from services.fabric.ring import RingOwner
from services.gpu_backend.engine import EngineError, LayeredEngine, ModelGeometry
from services.gpu_backend.engines.host_memory import available_bytes
from services.gpu_backend.kv_agent import HostPages, Pages
from services.gpu_backend.scheduler.host import HostScheduler
from services.gpu_backend.scheduler.interface import Scheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings

Progress = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, how much there is); may raise to stop."""

DEFAULT_KV_BYTES = 1 << 30


class EngineKit(Protocol):
    """Used in this order: default_pages, allocate, then make_scheduler and kv_pages; `close` last, after the
    scheduler's."""

    @property
    def geometry(self) -> ModelGeometry: ...

    def default_pages(self, useful: int) -> int:
        """As many KV pages as are of use and fit. Raises EngineError, naming the sizes, if none fits."""
        ...

    def allocate(self, settings: SchedulerSettings, max_context: int) -> None:
        """KV pages and all buffers. Raises EngineError, naming the sizes, when memory doesn't suffice."""
        ...

    def kv_pages(self) -> Pages:
        """For the KV agent."""
        ...

    def make_scheduler(self, ring: RingOwner, settings: SchedulerSettings, max_context: int) -> Scheduler:
        """Not started. Raises EngineError if a graph can't be captured, ValueError for settings that don't fit."""
        ...

    def close(self) -> None: ...


class HostKit:
    """An engine in host memory, driven by the core on a thread of this process."""

    def __init__(self, engine: LayeredEngine) -> None:
        self._engine = engine

    @property
    def geometry(self) -> ModelGeometry:
        return self._engine.geometry

    def default_pages(self, useful: int) -> int:
        """Within 1 GiB and half of the memory that is free."""
        free, block = available_bytes(), self._engine.resident_layers * self.geometry.layer_bytes
        pages = min(useful, min(DEFAULT_KV_BYTES, free // 2) // block)
        if pages < 1:
            raise EngineError(f"a page has {block} bytes; {free} bytes are free, of which half may be used")
        return pages

    def allocate(self, settings: SchedulerSettings, max_context: int) -> None:
        self._engine.allocate(settings.pages, settings.lanes, settings.step_tokens)

    def kv_pages(self) -> Pages:
        return HostPages(self._engine.kv_pages, self.geometry.layers, self._engine.resident_layers)

    def make_scheduler(self, ring: RingOwner, settings: SchedulerSettings, max_context: int) -> Scheduler:
        windowed = self._engine.resident_layers < self.geometry.layers
        return HostScheduler(
            ring.buffer, self._engine, settings, max_context=max_context,
            layers=lambda memory: memory.layer_counters(windowed),
        )  # fmt: skip

    def close(self) -> None:
        self._engine.close()
