"""What a scheduler on a GPU consists of: its code, its memories, and two executables of every graph."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend import _device
from services.gpu_backend.device import build, driver
from services.gpu_backend.device.driver import CudaError, Device, MappedMemory, Module, Stream
from services.gpu_backend.device.ring_memory import RingMemory
from services.gpu_backend.engine import EngineError, StepKind
from services.gpu_backend.engines.cuda.contract import CaptureProgress, GraphEngine, StepMemory
from services.gpu_backend.scheduler.settings import SchedulerSettings

_ENGINE_PARTS = ("step", "sequences", "tokens", "out_tokens", "block_tables")


class Installation:
    """On the device that is current. `close` gives everything back, in the order that the driver wants.

    core, memory  addresses of the core's block and of engine memory, in the GPU's memory
    agent         the KV agent's part of engine memory, in host memory that the GPU maps; layout: of both
    control       a page of host memory (control.hpp)
    table         address of the executables: two a graph, decode graphs first
    hot_bytes     of the core, to be kept in shared memory
    """

    def __init__(
        self,
        ring: RingMemory,
        engine: GraphEngine,
        settings: SchedulerSettings,
        *,
        max_context: int,
        device: Device,
        source: Path,
        progress: CaptureProgress,
    ) -> None:
        """Raises as DeviceScheduler; nothing stays behind then."""
        decodes = settings.decode_graphs or engine.graph_sizes(StepKind.DECODE)
        prefills = settings.prefill_graphs or engine.graph_sizes(StepKind.PREFILL)
        core, memory, self.hot_bytes = _device.images(
            ring=ring.host_view,
            settings=settings.core(max_context, engine.geometry.vocab),
            decode_graphs=list(decodes),
            prefill_graphs=list(prefills),
        )
        self.core_bytes, self.layout = len(core), _device.engine_layout(memory)
        with contextlib.ExitStack() as held:
            self._held = held
            self.module = held.enter_context(contextlib.closing(Module(build.cubin(source, device.capability))))
            self.stream = held.enter_context(contextlib.closing(Stream()))
            self.core, self.memory = self._allocate(core), self._allocate(memory)
            self.agent = held.enter_context(contextlib.closing(MappedMemory(len(memory))))
            self.agent.view[:] = memory
            self.control = held.enter_context(contextlib.closing(MappedMemory(_device.CONTROL_BYTES)))
            shapes = [(StepKind.DECODE, size) for size in decodes] + [(StepKind.PREFILL, size) for size in prefills]
            executables = self._capture(engine, shapes, progress)
            self.table = self._allocate(np.array([int(each) for each in executables], np.uint64))
            self._held = held.pop_all()

    def instantiate(self, graph: Any, name: str) -> Any:
        """An executable of `graph` that the GPU may launch. Raises EngineError, which names the graph."""
        try:
            executable = driver.instantiate(graph, self.stream)
        except CudaError as error:
            free, total = driver.memory_info()
            raise EngineError(
                f"the {name} can't be made launchable from the GPU, of whose {total} bytes {free} are free: {error}"
            ) from error
        self._held.callback(driver.destroy, executable)
        return executable

    def close(self) -> None:
        self._held.close()

    def _allocate(self, data: NDArray[Any]) -> int:
        """Device memory that begins as `data`."""
        address = driver.allocate(data.nbytes)
        self._held.callback(driver.free, address)
        driver.copy_in(address, data)
        return address

    def _capture(self, engine: GraphEngine, shapes: list[tuple[StepKind, int]], progress: CaptureProgress) -> list[Any]:
        """Two executables a shape, in the order of `shapes`; captured largest first."""
        at = self.layout
        memory = StepMemory(
            address=self.memory,
            size_bytes=at["size_bytes"],
            **{name: at[name] for name in ("lanes", "step_tokens", "lane_pages", "pages")},
            **{f"{name}_offset": at[f"{name}_offset"] for name in _ENGINE_PARTS},
        )
        pairs: dict[tuple[StepKind, int], list[Any]] = {}
        for done, (kind, size) in enumerate(sorted(shapes, key=lambda shape: (shape[0], -shape[1]))):
            graph, name = engine.capture(kind, size, memory), f"{kind.name.lower()} graph of size {size}"
            pairs[kind, size] = [self.instantiate(graph, name) for _ in range(2)]
            progress(kind, size, done + 1, len(shapes))
        self.stream.wait()
        return [executable for shape in shapes for executable in pairs[shape]]
