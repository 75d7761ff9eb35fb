"""Sides of a hand-over with real models: a prefill engine on the GPU, and a decode engine on the CPU with the same
weights, so that one GPU suffices."""

from pathlib import Path
from typing import Any

import torch

from services.fabric.hosting import RegionHost
from services.fabric.region import MemoryRegion
from services.fabric.ring import RingGeometry, RingOwner
from services.gpu_backend.device.driver import Device
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.kit import HostDrivenKit, ResidentKit
from services.gpu_backend.engines.cuda.settings import CudaSettings
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.kits import EngineKit, HostKit
from services.gpu_backend.kv_agent import AgentSettings, KvAgent, RingPrompts
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.models.registry import LoadedModel
from services.gpu_backend.scheduler.settings import SchedulerSettings
from services.gpu_backend.settings import BackendSettings
from services.kvstore.client import StoreClient
from tests.gpu.engine.small_models import RandomSource, small_config
from tests.gpu_backend.kv_agent.one_by_one import LANES, Side

CONTEXT = 4096
CONFIG = small_config(layers=5, hidden=256, intermediate=512, heads=4, head_dim=64, vocab=1000, max_context=CONTEXT)


def model(device: str) -> Llama:
    """The same weights everywhere."""
    source = RandomSource(CONFIG, torch.device("cpu"), torch.float32)
    return Llama(source, torch.float32, torch.device(device), lambda name, elements: None)


def cpu_kit() -> HostKit:
    return HostKit(TorchEngine(LoadedModel(model("cpu"), "drawn"), TorchSettings()))


def gpu_kit(scheduler: str, step_tokens: int) -> EngineKit:
    settings = BackendSettings(
        engine="cuda", model="drawn", role="prefill", kvstore="127.0.0.1:1", scheduler_kind=scheduler, lanes=LANES,
        step_tokens=step_tokens, device_deadline_s=100.0,
    )  # fmt: skip
    engine = CudaGraphEngine(model("cuda"), "drawn", CudaSettings(spare_processors=int(scheduler == "device")))
    if scheduler == "device":
        return ResidentKit(engine, Device(0), settings, _silent)
    return HostDrivenKit(engine, Device(0), settings, _silent)


def _silent(what: str, done: int, total: int) -> None:
    """Nobody looks at the progress."""


class ServedSide(Side):
    """Over a kit; at work between `run`'s beginning and end."""

    def __init__(
        self, folder: Path, name: str, store: StoreClient, settings: AgentSettings, regions: RegionHost, kit: EngineKit,
        *, pages: int, step_tokens: int, by_layers: bool = True, peers: Any = None,
    ) -> None:  # fmt: skip
        self._kit = kit
        core = SchedulerSettings(LANES, step_tokens, pages, kv_orders=True, store_limit=pages)
        kit.allocate(core, CONTEXT)
        geometry, shape = RingGeometry(64, 1 << 18, 1 << 18), kit.geometry
        self.region = MemoryRegion.create(f"ring.{name}", geometry.size_bytes, directory=folder)
        owner = RingOwner(self.region, geometry, epoch=1, max_context=CONTEXT, vocab_size=shape.vocab, page_count=pages)
        scheduler: Any = kit.make_scheduler(owner, core, CONTEXT)
        self.scheduler = scheduler
        if not hasattr(scheduler, "poke"):
            scheduler.poke = lambda: None
        self._join(owner)
        self.agent = KvAgent(
            self.scheduler.orders, RingPrompts(owner), kit.kv_pages(), store, settings, name, regions, shape.layers,
            peers, self.scheduler.layers if by_layers else None,
        )  # fmt: skip

    def _close(self) -> None:
        self.scheduler.close()
        self._kit.close()
        super()._close()
