"""A ring in shared memory, the toy engine in graphs, and the scheduler on the GPU over both."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest

from services.fabric._ring import EngineState
from services.fabric.region import MemoryRegion
from services.fabric.ring import RingGeometry, RingOwner
from services.fabric.ring.layout import header_field_offset
from services.gpu_backend._device import Ending
from services.gpu_backend.device import build, driver
from services.gpu_backend.device.device_scheduler import DeviceScheduler
from services.gpu_backend.device.driver import Arguments, Device, Graph, Module
from services.gpu_backend.device.ring_memory import DeviceRing, HostRing
from services.gpu_backend.device.settings import DeviceSettings
from services.gpu_backend.engine import ModelGeometry, StepKind
from services.gpu_backend.engines.cuda.contract import StepMemory
from services.gpu_backend.scheduler.interface import SchedulerLost
from services.gpu_backend.scheduler.settings import SchedulerSettings, graph_sizes
from tests.gpu.scheduler.reference import VOCABULARY
from tests.gpu.scheduler.ring_relay import RingRelay
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
SOURCE = Path(__file__).with_name("toy.cu")
MOST_PROMPT, MOST_TOKENS = 220, 90
_STATE_AT = header_field_offset("engine_state")


class ToyEngine:
    """A GraphEngine of toy.cu."""

    source = SOURCE

    def __init__(self, device: Device, max_context: int) -> None:
        self.geometry = ModelGeometry(1, 1, 1, 1, VOCABULARY, max_context, "uint32", "toy")
        self.module = Module(build.cubin(self.source, device.capability))
        self._graphs: list[Graph] = []

    def allocate(self, pages: int, lanes: int, step_tokens: int) -> None:
        self._lanes, self._step_tokens = lanes, step_tokens
        self._kv = driver.allocate(pages * 64 * 4)

    def graph_sizes(self, kind: StepKind) -> tuple[int, ...]:
        return graph_sizes(self._lanes if kind == StepKind.DECODE else self._step_tokens)

    def capture(self, kind: StepKind, size: int, memory: StepMemory) -> int:
        graph = Graph()
        self.add_nodes(graph, size if kind == StepKind.DECODE else memory.lanes, memory)
        self._graphs.append(graph)
        return int(graph.handle)

    def add_nodes(self, graph: Graph, rows: int, memory: StepMemory) -> None:
        address, kv = np.array([memory.address], np.uint64), np.array([self._kv], np.uint64)
        graph.add(self.module.function("toy_step"), min(rows, memory.lanes), 64, Arguments([address, kv]))
        graph.add(self.module.function("step_done"), 1, 1, Arguments([address]))

    def close(self) -> None:
        for graph in self._graphs:
            graph.close()
        driver.free(self._kv)
        self.module.close()


class SilentEngine(ToyEngine):
    """Its steps never say that they are done."""

    def add_nodes(self, graph: Graph, rows: int, memory: StepMemory) -> None:
        address, kv = np.array([memory.address], np.uint64), np.array([self._kv], np.uint64)
        graph.add(self.module.function("toy_step"), min(rows, memory.lanes), 64, Arguments([address, kv]))


class Rig:
    """Everything, started. As a context manager: stopped, its books checked, and closed."""

    def __init__(
        self, device: Device, settings: SchedulerSettings, *, slots: int = 256, max_context: int = 384,
        own: DeviceSettings | None = None, engine: Callable[[Device, int], ToyEngine] = ToyEngine,
        name: str = "gpu-test", words: int = 1 << 17, make_ring: Callable[[Any], Any] = HostRing,
        scheduler: type[DeviceScheduler] = DeviceScheduler,
    ) -> None:  # fmt: skip
        geometry = RingGeometry(slots, words, words)
        self.region = MemoryRegion.create(f"{name}-{os.getpid()}", geometry.size_bytes)
        self.ring = RingOwner(
            self.region, geometry, epoch=1, max_context=max_context, vocab_size=VOCABULARY, page_count=settings.pages
        )
        self.memory = make_ring(self.ring.buffer)
        self.engine = engine(device, max_context)
        self.engine.allocate(settings.pages, settings.lanes, settings.step_tokens)
        self.scheduler = scheduler(
            self.memory, self.engine, settings, max_context=max_context, device=device,
            device_settings=own or DeviceSettings(deadline_s=110.0),
        )  # fmt: skip
        self.lost = False
        self._front_ends: list[subprocess.Popen[str]] = []
        self.scheduler.start()
        self.relay = RingRelay(self.memory, geometry, device) if isinstance(self.memory, DeviceRing) else None
        if self.relay is not None:
            self.relay.start()
        self.until(lambda: self.state == EngineState.SERVING)

    @property
    def state(self) -> EngineState:
        return EngineState(int(np.frombuffer(self.ring.buffer, np.uint32, 1, _STATE_AT)[0]))

    def until(self, holds: Callable[[], bool]) -> None:
        wait_until(holds, saw=lambda: (self.scheduler.counters(), self.scheduler.ending))

    def front_end(self, place: int, **given: Any) -> "subprocess.Popen[str]":
        """A front end at this place, in a process of its own, which ends with the rig at the latest."""
        share = self.ring.share(place)
        self.ring.grant(share)
        arguments = {
            "path": str(self.region.path), "share": asdict(share), "seed": place + 1,
            "most_prompt": MOST_PROMPT, "most_tokens": MOST_TOKENS, **given,
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.gpu.scheduler.front_end", json.dumps(arguments)]
        self._front_ends.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return self._front_ends[-1]

    def lose(self, ending: Ending) -> None:
        """The scheduler has ended by itself, or is about to, and says why."""
        self.until(lambda: self.scheduler.ending == ending)
        self.lost = True
        with pytest.raises(SchedulerLost, match=ending.name.lower()):
            self.scheduler.stop(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if not self.lost:
                self.scheduler.stop(10)
            if kind is None:
                self.scheduler.check()
        finally:
            for process in self._front_ends:
                process.kill()
                with process:  # waits, and closes its pipe
                    pass
            if self.relay is not None:
                self.relay.stop()
            if self.scheduler.stopped:
                self.scheduler.close()
                self.engine.close()
                self.memory.close()
            self.region.close()


def summary_of(process: "subprocess.Popen[str]") -> dict[str, Any]:
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    summary: dict[str, Any] = json.loads(printed)
    return summary
