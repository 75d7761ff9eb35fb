"""The engine's process of bench/gpu_resident.py: one model, one ring, one of the schedulers.

    python -m bench.gpu.resident_engine '{"form": "resident", "layers": 32, ...}'

Prints a line of JSON when it serves. Then it waits for lines: `steps` is answered with the number of steps so
far, `end` (or the end of input) with the device's stamps written to the given file. Nothing else runs here.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from cuda.bindings import driver as cuda
from cuda.bindings import nvrtc

from bench.gpu.kv_traffic_mover import Mover, obey
from services.fabric.region import MemoryRegion
from services.fabric.ring import RingGeometry, RingOwner
from services.gpu_backend.device import driver
from services.gpu_backend.device.device_scheduler import DeviceScheduler
from services.gpu_backend.device.driver import Device
from services.gpu_backend.device.ring_memory import HostRing
from services.gpu_backend.device.settings import DeviceSettings
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.host_driven import HostDrivenGraphEngine
from services.gpu_backend.engines.cuda.memory_views import StepTensors
from services.gpu_backend.engines.cuda.program import Gate, Tail
from services.gpu_backend.engines.cuda.settings import CudaSettings, decode_sizes, prefill_sizes
from services.gpu_backend.models.config import ModelConfig
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.models.random_weights import RandomWeights
from services.gpu_backend.models.registry import load
from services.gpu_backend.scheduler.host import HostScheduler
from services.gpu_backend.scheduler.overlap import OverlapScheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu.scheduler.builds import scheduler_of

KEPT = 1 << 17
"""Stamps, by step."""

STAMP = b"""
extern "C" __global__ void finish_and_stamp(const unsigned long long* step, unsigned long long* done,
                                            unsigned long long* stamps) {
  const unsigned long long now = *step;
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  stamps[now % KEPT] = ns;
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(done), "l"(now) : "memory");
}
""".replace(b"KEPT", str(KEPT).encode())


@dataclass(frozen=True)
class Wanted:
    form: str
    layers: int
    small: bool
    stamps: str
    name: str
    deadline_s: float
    folder: str = ""
    """Of a model whose weights are taken, in float32; empty: drawn ones."""
    architecture: str = "llama"
    """Of drawn weights."""
    prefill_chunk: int = 0
    mixed_tokens: int = 2304
    lanes: int = 64
    step_tokens: int = 2304
    max_context: int = 5184
    pages: int = 0
    """0: for all lanes."""
    build: str = "as it is"
    """Of the scheduler on the GPU (tests/gpu/scheduler/builds.py)."""
    skinny_rows: int = 8
    traffic_blocks: int = 0
    """KV blocks that bench/gpu_kv_traffic.py moves at a time; 0: none."""


class Scheduler(Protocol):
    def start(self) -> None: ...
    def stop(self, timeout_s: float) -> None: ...
    def check(self) -> None: ...
    def counters(self) -> dict[str, int]: ...


def model_config(wanted: Wanted) -> ModelConfig:
    """Llama-3 8B's shape, or a small one, in which Qwen3's heads are wider than hidden size / heads, as in most of
    its models."""
    config = ModelConfig(
        architecture=wanted.architecture, layers=wanted.layers, hidden=4096, intermediate=14336, heads=32, kv_heads=8,
        head_dim=128, vocab=128_256, max_context=8192, rms_epsilon=1e-5, rope_theta=500_000.0,
    )  # fmt: skip
    if not wanted.small:
        return config
    head_dim = 128 if wanted.architecture == "qwen3" else 64
    return replace(config, hidden=512, intermediate=1024, heads=8, kv_heads=2, head_dim=head_dim, vocab=4096)


def model_of(wanted: Wanted) -> Llama:
    """In bfloat16, the small one in float32."""
    if wanted.folder:
        model = load(Path(wanted.folder), "float32", "cuda").model
        assert isinstance(model, Llama)
        return model
    config, dtype = model_config(wanted), torch.float32 if wanted.small else torch.bfloat16
    device = torch.device("cuda")
    return Llama(RandomWeights(config, dtype, device), dtype, device, lambda name, elements: None)


class StampedEngine(CudaGraphEngine):
    """Its graphs' last kernel also notes the GPU's clock, in ns, by step."""

    def allocate(self, pages: int, lanes: int, step_tokens: int, gate: Gate | None = None) -> None:
        super().allocate(pages, lanes, step_tokens, gate)
        assert self._program is not None
        self.stamps = torch.zeros(KEPT, dtype=torch.int64, device="cuda")
        self._function = _stamping_kernel()
        self._program._tail = Tail(self._program._tail.sample, self._finish)

    def _finish(self, step: StepTensors) -> None:
        values = [each.data_ptr() for each in (step.step, step.done_step, self.stamps)]
        arrays = [np.array([value], np.uint64) for value in values]
        pointers = np.array([array.ctypes.data for array in arrays], np.uint64)
        stream = torch.cuda.current_stream().cuda_stream
        driver.call(cuda.cuLaunchKernel, self._function, 1, 1, 1, 1, 1, 1, 0, stream, int(pointers.ctypes.data), 0)


def _stamping_kernel() -> Any:
    def check(answer: Any) -> Any:
        if int(answer[0]) != 0:
            raise RuntimeError(f"the stamping kernel does not compile: {answer[0]!r}")
        return answer[1] if len(answer) > 1 else None

    program = check(nvrtc.nvrtcCreateProgram(STAMP, b"stamp.cu", 0, [], []))
    check(nvrtc.nvrtcCompileProgram(program, 1, [b"-arch=sm_90"]))
    code = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    check(nvrtc.nvrtcGetCUBIN(program, code))
    module = driver.call(cuda.cuModuleLoadData, code)
    return driver.call(cuda.cuModuleGetFunction, module, b"finish_and_stamp")


def said(scheduler: Scheduler, driven: HostDrivenGraphEngine | None) -> dict[str, int]:
    """The counters; and `stamped`, the number of the last step that has a stamp."""
    counters = scheduler.counters()
    steps = counters["prefill_launches"] + counters["decode_launches"]
    # A host that queues steps ahead numbers those that were in vain, too.
    return counters | {"stamped": steps if driven is None else driven._steps}


def main() -> None:
    wanted = Wanted(**json.loads(sys.argv[1]))
    took = {"begin": time.perf_counter()}
    model = model_of(wanted)
    took["model"] = time.perf_counter()
    decodes, prefills = decode_sizes(wanted.lanes), prefill_sizes(wanted.step_tokens)
    engine = StampedEngine(
        model, wanted.folder or "random",
        CudaSettings(decode_sizes=decodes, prefill_sizes=prefills,
                     spare_processors=int(wanted.form == "resident"), skinny_rows=wanted.skinny_rows,
                     singles="beside" if wanted.mixed_tokens else "tiles"),
    )  # fmt: skip
    settings = SchedulerSettings(
        lanes=wanted.lanes, step_tokens=wanted.step_tokens,
        pages=wanted.pages or wanted.lanes * wanted.max_context // 64,
        prefill_chunk=wanted.prefill_chunk, mixed_tokens=wanted.mixed_tokens,
        decode_graphs=decodes, prefill_graphs=prefills,
    )  # fmt: skip
    geometry = RingGeometry(1024, 1 << 21, 1 << 20)
    region = MemoryRegion.create(f"{wanted.name}-{os.getpid()}", geometry.size_bytes)
    ring = RingOwner(
        region, geometry, epoch=1, max_context=wanted.max_context, vocab_size=model.config.vocab,
        page_count=settings.pages,
    )  # fmt: skip
    memory = driven = mover = None
    scheduler: Scheduler
    if wanted.form == "resident":
        device = Device()
        memory = HostRing(ring.buffer)
        engine.allocate(settings.pages, settings.lanes, settings.step_tokens)
        if wanted.traffic_blocks:
            size = engine.geometry
            mover = Mover(device, wanted.traffic_blocks, size.block_bytes, size.layers)
        kind = scheduler_of(wanted.build, Path(wanted.stamps).parent)
        scheduler = kind(
            memory, engine, settings, max_context=wanted.max_context, device=device,
            device_settings=DeviceSettings(deadline_s=wanted.deadline_s),
        )  # fmt: skip
    else:
        driven = HostDrivenGraphEngine(engine, wanted.max_context)
        driven.allocate(settings.pages, settings.lanes, settings.step_tokens)
        driver_of = OverlapScheduler if wanted.form == "host-overlap" else HostScheduler
        scheduler = driver_of(ring.buffer, driven, settings, max_context=wanted.max_context)
    torch.cuda.synchronize()
    took["captured"] = time.perf_counter()
    share = ring.share(0)
    ring.grant(share)
    scheduler.start()
    started = {
        "descriptor": region.descriptor().SerializeToString().hex(),
        "share": asdict(share),
        "pid": os.getpid(),
        "vocab": model.config.vocab,
    }
    started["gpu"], started["torch"] = torch.cuda.get_device_name(), torch.__version__
    started["model_s"], started["capture_s"] = took["model"] - took["begin"], took["captured"] - took["model"]
    if mover is not None:
        started["traffic"] = [wanted.traffic_blocks, mover.pages.block_bytes, mover.pages.layers, mover.handle.hex()]
    print(json.dumps(started), flush=True)
    try:
        for line in sys.stdin:
            if line.strip() == "end":
                break
            words = line.split()
            answer = obey(mover, words) if mover and words[0] != "steps" else said(scheduler, driven)
            print(json.dumps(answer), flush=True)
    finally:
        if mover is not None:
            mover.stop()
        scheduler.stop(20)
        scheduler.check()
        np.save(wanted.stamps, engine.stamps.cpu().numpy())
        last = said(scheduler, driven)
        if isinstance(scheduler, DeviceScheduler):
            last["launch_errors"] = scheduler.launch_errors
            scheduler.close()
        if mover is not None:
            mover.pages.close()
        engine.close()
        if memory is not None:
            memory.close()
        region.close()
        print(json.dumps(last), flush=True)


if __name__ == "__main__":
    main()
