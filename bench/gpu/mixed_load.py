"""A scheduler and a front end in one process, and an open loop of requests at the ring between them."""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from bench.gpu.energy import Energy
from services.fabric.region import MemoryRegion
from services.fabric.ring import EngineState, Finish, RingClient, RingGeometry, RingOwner, SlotState
from services.fabric.ring.burst import Burst
from services.fabric.transports import open_region
from services.gpu_backend.device.device_scheduler import DeviceScheduler
from services.gpu_backend.device.driver import Device
from services.gpu_backend.device.ring_memory import HostRing
from services.gpu_backend.device.settings import DeviceSettings
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.host_driven import HostDrivenGraphEngine
from services.gpu_backend.engines.cuda.settings import CudaSettings
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.scheduler.overlap import OverlapScheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings

_START_S, _RUN_S, _STOP_S, _LOOK_S = 60.0, 90.0, 20.0, 2e-4

Prompts = Sequence[NDArray[np.uint32]]


@dataclass
class Ran:
    """Seconds, by the client's clock; a row a request."""

    tokens: list[list[int]]
    ttft: NDArray[np.float64]
    tpot: NDArray[np.float64]
    gaps: list[float]
    whole_s: float
    joules: float | None

    def summary(self) -> dict[str, Any]:
        def ms(values: Any, *percents: int) -> dict[str, float]:
            found = {f"p{p}": round(1e3 * float(np.percentile(values, p)), 2) for p in percents}
            return {"mean": round(1e3 * float(np.mean(values)), 2), **found}

        count = sum(map(len, self.tokens))
        return {
            "requests": len(self.tokens), "tokens": count, "s": round(self.whole_s, 2),
            "ttft_ms": ms(self.ttft, 50, 99), "tpot_ms": ms(self.tpot, 50, 99), "itl_ms": ms(self.gaps, 50, 99),
            "mj_a_token": None if self.joules is None else round(1e3 * self.joules / count, 1),
        }  # fmt: skip


class Serving:
    """`with`: an engine of captured graphs under a scheduler that runs. form: resident or host-overlap."""

    def __init__(
        self, model: Llama, cuda: CudaSettings, settings: SchedulerSettings, max_context: int, form: str
    ) -> None:
        self._model, self._cuda, self._settings, self._form = model, cuda, settings, form
        self._context = max_context
        self.counters: dict[str, int] = {}

    def __enter__(self) -> Self:
        settings, vocab = self._settings, self._model.config.vocab
        geometry = RingGeometry(1024, 1 << 22, 1 << 21)
        with contextlib.ExitStack() as opened:
            region = MemoryRegion.create(f"gpu-mixed-{os.getpid()}", geometry.size_bytes)
            opened.callback(region.close)
            ring = RingOwner(
                region, geometry, epoch=1, max_context=self._context, vocab_size=vocab, page_count=settings.pages
            )
            ring.grant(share := ring.share(0))
            self._scheduler = self._schedule(ring, opened)
            torch.cuda.synchronize()
            self._client = RingClient(open_region(region.descriptor()), share)
            opened.callback(self._client.close)
            self._energy = Energy()
            self._scheduler.start()
            opened.callback(self._end)
            self._wait()
            self._opened = opened.pop_all()
        return self

    def _schedule(self, ring: RingOwner, opened: contextlib.ExitStack) -> DeviceScheduler | OverlapScheduler[Any]:
        settings = self._settings
        scheduler: DeviceScheduler | OverlapScheduler[Any]
        if self._form == "resident":
            device, memory = Device(), HostRing(ring.buffer)
            opened.callback(memory.close)
            opened.callback((engine := CudaGraphEngine(self._model, "random", self._cuda)).close)
            engine.allocate(settings.pages, settings.lanes, settings.step_tokens)
            scheduler = DeviceScheduler(
                memory, engine, settings, max_context=self._context, device=device,
                device_settings=DeviceSettings(deadline_s=150),
            )  # fmt: skip
        else:
            opened.callback((engine := CudaGraphEngine(self._model, "random", self._cuda)).close)
            driven = HostDrivenGraphEngine(engine, self._context)
            driven.allocate(settings.pages, settings.lanes, settings.step_tokens)
            scheduler = OverlapScheduler(ring.buffer, driven, settings, max_context=self._context)
        opened.callback(scheduler.close)
        return scheduler

    def _wait(self) -> None:
        give_up = time.monotonic() + _START_S
        while self._client.read_status().state is not EngineState.SERVING:
            if time.monotonic() > give_up:
                raise TimeoutError(f"the scheduler does not serve after {_START_S:g} s")
            time.sleep(1e-3)

    def _end(self) -> None:
        self._scheduler.stop(_STOP_S)
        self._scheduler.check()
        self.counters = self._scheduler.counters()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()

    def read_counters(self) -> dict[str, int]:
        time.sleep(0.02)  # a report may be some ms old
        return self._scheduler.counters()

    def run(self, arrivals: Sequence[float], prompts: Prompts, most: Sequence[int]) -> Ran:
        """Greedily; waits for all."""
        n, burst = len(prompts), Burst(self._client, prompts, most)
        first, last, done = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
        gaps: list[float] = []
        sent, joules, begin = 0, self._energy.joules(), time.perf_counter()
        while True:
            now = time.perf_counter() - begin
            due = int(np.searchsorted(arrivals, now, side="right"))
            if due > sent:
                burst.submit(slice(sent, due))
                sent = due
            found = burst.look()
            now, tokens = time.perf_counter() - begin, found.tokens.astype(np.int64)
            for i in np.flatnonzero(tokens > done).tolist():
                if done[i]:
                    gaps += [(now - last[i]) / (tokens[i] - done[i])] * int(tokens[i] - done[i])
                else:
                    first[i] = now
                last[i], done[i] = now, tokens[i]
            if sent == n and (found.states == SlotState.DECODE_COMPLETED).all():
                break
            if now > _RUN_S:
                raise TimeoutError(f"not finished in {_RUN_S:g} s: {found}, {self._scheduler.counters()}")
            time.sleep(_LOOK_S)
        later = self._energy.joules()
        if (found.finishes != Finish.LENGTH).any():
            raise RuntimeError(f"finished with {found.finishes.tolist()}, {self._scheduler.counters()}")
        answers = burst.answers()
        burst.release()
        return Ran(
            answers, first - np.asarray(arrivals), (last - first) / np.maximum(done - 1, 1), gaps, now,
            None if joules is None or later is None else later - joules,
        )  # fmt: skip
