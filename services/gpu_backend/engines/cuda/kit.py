"""The kits of `--engine cuda`: a model on a GPU as captured graphs, and who launches them.

Imported only for that engine: it needs torch for CUDA, triton and CUDA's bindings.
"""

import logging

import torch

from services.common.settings import SettingError
from services.fabric.ring import RingOwner
from services.gpu_backend.device.device_scheduler import DeviceScheduler
from services.gpu_backend.device.driver import CudaError, Device, NoDevice, RegisteredMemory
from services.gpu_backend.device.kv_pages import DevicePages
from services.gpu_backend.device.ring_memory import HostRing
from services.gpu_backend.device.settings import DeviceSettings
from services.gpu_backend.engine import PAGE_TOKENS, EngineError, ModelGeometry, StepKind
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.host_driven import HostDrivenGraphEngine
from services.gpu_backend.engines.cuda.layer_gate import LayerGate
from services.gpu_backend.engines.cuda.settings import CudaSettings
from services.gpu_backend.kits import EngineKit, Progress
from services.gpu_backend.kv_agent import Pages
from services.gpu_backend.layers import LayerCounters
from services.gpu_backend.models.config import ModelError
from services.gpu_backend.models.registry import LoadedModel, load
from services.gpu_backend.scheduler.host import HostScheduler
from services.gpu_backend.scheduler.interface import Scheduler
from services.gpu_backend.scheduler.memory import EngineMemory
from services.gpu_backend.scheduler.overlap import OverlapScheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings
from services.gpu_backend.settings import BackendSettings

log = logging.getLogger(__name__)

MIB = 1 << 20
PATIENCE = 2
"""Load deadlines that a step waits for a layer: the agent gives up earlier."""
LEAST_SPARE_BYTES = 1 << 30
"""Of the GPU's memory, for buffers and graphs, beside weights and KV pages."""


def load_graph_kit(settings: BackendSettings, progress: Progress) -> EngineKit:
    """Raises SettingError, naming the sizes where memory doesn't suffice."""
    if not torch.cuda.is_available():
        raise SettingError(
            f"engine cuda: torch {torch.__version__} sees no GPU (its CUDA: {torch.version.cuda}); "
            "see docs/operations.md for the torch to install, or use --engine torch"
        )
    try:
        device = Device(settings.gpu)
    except NoDevice as error:
        raise SettingError(f"gpu: {error}") from None
    torch.cuda.set_device(settings.gpu)
    try:
        loaded = _load(settings, progress)
        # A multiprocessor is left alone only where a scheduler lives on it.
        own = CudaSettings(
            spare_processors=1 if settings.scheduling == "device" else 0,
            singles="beside" if settings.most_mixed_tokens else "tiles",
        )
        engine = CudaGraphEngine(loaded.model, loaded.identity, own)
    except EngineError as error:
        raise SettingError(f"engine cuda: {error}") from None
    kit = ResidentKit if settings.scheduling == "device" else HostDrivenKit
    return kit(engine, device, settings, progress)


def _load(settings: BackendSettings, progress: Progress) -> LoadedModel:
    name = f"cuda:{settings.gpu}"
    free, total = torch.cuda.mem_get_info(settings.gpu)
    try:
        return load(settings.model_folder, settings.number_type, name, weights=settings.weights, progress=progress)
    except ModelError as error:
        raise SettingError(f"model: {error}") from None
    except torch.cuda.OutOfMemoryError:
        taken = torch.cuda.memory_allocated(settings.gpu)
        raise SettingError(
            f"model: the weights of {settings.model!r} in {settings.number_type} don't fit: of the GPU's "
            f"{total // MIB} MiB {free // MIB} were free, {taken // MIB} of them hold what was loaded so far"
        ) from None


class GraphKit:
    """What the kits have in common: one model, its graphs' engine, one GPU."""

    _pages: DevicePages | None = None
    _gate: LayerGate | None = None

    def __init__(self, engine: CudaGraphEngine, device: Device, settings: BackendSettings, progress: Progress) -> None:
        self._engine, self._device, self._settings, self._progress = engine, device, settings, progress

    @property
    def geometry(self) -> ModelGeometry:
        return self._engine.geometry

    def default_pages(self, useful: int) -> int:
        """Within the set share of free memory."""
        free, total = torch.cuda.mem_get_info(self._settings.gpu)
        if self._settings.receives_on_device:
            free = max(0, free - self._settings.receive_buffer_bytes)
        usable = min(int(free * self._settings.gpu_memory), free - LEAST_SPARE_BYTES)
        block = self.geometry.block_bytes
        if usable < block:
            raise EngineError(
                f"a page has {block / MIB:.1f} MiB; of the GPU's {total // MIB} MiB {free // MIB} are free beside the "
                f"weights, and KV pages may take {max(0, usable) // MIB} of them"
            )
        return min(useful, usable // block)

    def kv_pages(self) -> Pages:
        pool = self._engine.kv_pool
        geometry = self.geometry
        self._pages = DevicePages(
            self._device, pool.data_ptr(), len(pool), geometry.block_bytes, geometry.layers, self.device_is_free
        )
        return self._pages

    def device_is_free(self) -> bool:
        """No scheduler lives there."""
        return True

    def make_gate(self, settings: SchedulerSettings, max_context: int) -> LayerGate | None:
        """For an engine that begins as one that prefills for others (D6): only such a one's graphs have the nodes."""
        own = self._settings
        if own.role == "prefill" and own.layerwise and own.kv_copies == "engine":
            self._gate = LayerGate(settings.lanes, -(-max_context // PAGE_TOKENS), PATIENCE * own.load_deadline_s)
        return self._gate

    def captured(self, kind: StepKind, size: int, done: int, total: int) -> None:
        self._progress(f"capturing graphs: {kind.name.lower()} of {size}", done, total)

    def tell_memory(self) -> None:
        report = self._engine.memory_report()
        free, _ = torch.cuda.mem_get_info(self._settings.gpu)
        log.info(
            "GPU memory",
            extra={
                "weights_mib": report.weights // MIB,
                "kv_mib": report.kv_pages // MIB,
                "buffers_mib": report.buffers // MIB,
                "graphs_mib": report.graphs // MIB,
                "graphs": report.graph_count,
                "free_mib": free // MIB,
            },
        )

    def close(self) -> None:
        self._device.use()
        if self._pages is not None:
            self._pages.close()
        self._engine.close()
        if self._gate is not None:
            self._gate.close()
        self._device.close()


class ResidentKit(GraphKit):
    """The scheduler lives on the GPU (B1); its ring is host memory that the GPU maps."""

    _ring: HostRing | None = None
    _scheduler: DeviceScheduler | None = None

    def allocate(self, settings: SchedulerSettings, max_context: int) -> None:
        gate = self.make_gate(settings, max_context)
        self._engine.allocate(settings.pages, settings.lanes, settings.step_tokens, gate)

    def make_scheduler(self, ring: RingOwner, settings: SchedulerSettings, max_context: int) -> Scheduler:
        try:
            self._ring = HostRing(ring.buffer)
        except CudaError as error:
            raise EngineError(
                f"the GPU can't map the ring of {len(ring.buffer)} bytes at {ring.region.path} ({error}); "
                "HOSTLESS_SHM must be a folder in memory (tmpfs), such as /dev/shm"
            ) from error
        own = DeviceSettings(
            host_patience_s=self._settings.host_patience_s,
            deadline_s=self._settings.device_deadline_s,
        )
        self._scheduler = DeviceScheduler(
            self._ring,
            self._engine,
            settings,
            max_context=max_context,
            device=self._device,
            device_settings=own,
            progress=self.captured,
            gate=self._gate,
        )
        self.tell_memory()
        return self._scheduler

    def device_is_free(self) -> bool:
        return self._scheduler is None or self._scheduler.stopped

    def close(self) -> None:
        self._device.use()
        if self._ring is not None:
            self._ring.close()
        super().close()


class HostDrivenKit(GraphKit):
    """The same graphs, launched by a thread of this process, one by one or overlapped: the baseline (B Figure 3)."""

    _driven: HostDrivenGraphEngine | None = None
    _words: RegisteredMemory | None = None

    def allocate(self, settings: SchedulerSettings, max_context: int) -> None:
        self._driven = HostDrivenGraphEngine(self._engine, max_context, self.captured)
        gate = self.make_gate(settings, max_context)
        self._driven.allocate(settings.pages, settings.lanes, settings.step_tokens, gate)

    def make_scheduler(self, ring: RingOwner, settings: SchedulerSettings, max_context: int) -> Scheduler:
        assert self._driven is not None, "allocate comes first"
        self.tell_memory()
        if self._settings.scheduling == "host-overlap":
            return OverlapScheduler(ring.buffer, self._driven, settings, max_context=max_context)
        counters = self._count_layers if self._gate else None
        return HostScheduler(ring.buffer, self._driven, settings, max_context=max_context, layers=counters)

    def _count_layers(self, memory: EngineMemory) -> LayerCounters:
        assert self._gate is not None
        buffer, offset = memory.layers_ready
        self._words = RegisteredMemory(buffer)
        return self._gate.connect(self._words.address + offset, buffer, offset)

    def close(self) -> None:
        self._device.use()
        if self._words is not None:
            self._words.close()
        if self._driven is not None:
            self._driven.close()
        super().close()
