"""A scheduler and a front end in one process, and an open loop of requests at the ring between them."""

import math
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from bench.gpu_energy import Energy
from services.fabric import _ring
from services.fabric._ring import EngineState, Finish, RecordFlags, SlotState
from services.fabric.region import MemoryRegion
from services.fabric.ring import RingClient, RingGeometry, RingOwner
from services.fabric.ring.layout import RECORD, unpack
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


def requests_of(rate: float, count: int, vocab: int) -> tuple[list[float], list[NDArray[np.uint32]], list[int]]:
    """Poisson arrivals; prompts and answers log-normal, mean about 1,019 and 463, at most 4,096 and 1,024. Always the
    same."""
    dice, rng = random.Random(5), np.random.default_rng(5)
    arrivals, lengths, answers, at = [], [], [], 0.0
    for _ in range(count):
        at += dice.expovariate(rate)
        arrivals.append(at)
        lengths.append(int(min(max(dice.lognormvariate(math.log(1019) - 0.45, 1.0), 16), 4096)))
        answers.append(int(min(max(dice.lognormvariate(math.log(463) - 0.27, 0.8), 16), 1024)))
    return arrivals, [rng.integers(0, vocab, n, np.uint32) for n in lengths], answers


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
        self._region = MemoryRegion.create(f"gpu-mixed-{os.getpid()}", geometry.size_bytes)
        ring = RingOwner(
            self._region, geometry, epoch=1, max_context=self._context, vocab_size=vocab, page_count=settings.pages
        )
        share = ring.share(0)
        ring.grant(share)
        self._engine = CudaGraphEngine(self._model, "random", self._cuda)
        self._memory: HostRing | None = None
        self._scheduler: DeviceScheduler | OverlapScheduler[Any]
        if self._form == "resident":
            device = Device()
            self._memory = HostRing(ring.buffer)
            self._engine.allocate(settings.pages, settings.lanes, settings.step_tokens)
            self._scheduler = DeviceScheduler(
                self._memory, self._engine, settings, max_context=self._context, device=device,
                device_settings=DeviceSettings(deadline_s=150),
            )  # fmt: skip
        else:
            driven = HostDrivenGraphEngine(self._engine, self._context)
            driven.allocate(settings.pages, settings.lanes, settings.step_tokens)
            self._scheduler = OverlapScheduler(ring.buffer, driven, settings, max_context=self._context)
        torch.cuda.synchronize()
        self._client = RingClient(open_region(self._region.descriptor()), share)
        self._energy = Energy()
        self._scheduler.start()
        give_up = time.monotonic() + _START_S
        while self._client.read_status().state is not EngineState.SERVING:
            if time.monotonic() > give_up:
                raise TimeoutError(f"the scheduler does not serve after {_START_S:g} s")
            time.sleep(1e-3)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._scheduler.stop(_STOP_S)
        self._scheduler.check()
        self.counters = self._scheduler.counters()
        self._scheduler.close()
        self._engine.close()
        if self._memory is not None:
            self._memory.close()
        self._region.close()

    def read_counters(self) -> dict[str, int]:
        time.sleep(0.02)  # a report may be some ms old
        return self._scheduler.counters()

    def run(self, arrivals: Sequence[float], prompts: Prompts, most: Sequence[int]) -> Ran:
        """Greedily; waits for all."""
        n, client = len(prompts), self._client
        records = self._records(prompts, most)
        slots = np.arange(n, dtype=np.uint64) + np.uint64(client.share.slot_begin)
        first, last, done = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
        gaps: list[float] = []
        sent, joules, begin = 0, self._energy.joules(), time.perf_counter()
        while True:
            now = time.perf_counter() - begin
            due = int(np.searchsorted(arrivals, now, side="right"))
            if due > sent:
                self._submit(slice(sent, due), slots, records, prompts)
                sent = due
            found = unpack(client.read_words()[:n])
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
        ids = client.read_tokens(records["token_begin"].astype(np.uint64), found.tokens.astype(np.uint64))
        empty = [_ring.slot_word(SlotState.EMPTY, Finish.NONE, int(each), 0) for each in records["generation"]]
        assert client.release(slots, client.read_words()[:n], np.array(empty, np.uint64)).all()
        return Ran(
            [each.tolist() for each in np.split(ids, np.cumsum(found.tokens)[:-1].astype(np.int64))],
            first - np.asarray(arrivals), (last - first) / np.maximum(done - 1, 1), gaps, now,
            None if joules is None or later is None else later - joules,
        )  # fmt: skip

    def _records(self, prompts: Prompts, most: Sequence[int]) -> NDArray[Any]:
        """A slot a request, from the share's first on."""
        share, n = self._client.share, len(prompts)
        words = self._client.read_words()[:n]
        records = np.zeros(n, RECORD)
        records["generation"] = [_ring.next_generation(_ring.unpack_word(int(word))[2]) for word in words]
        records["prompt_count"] = [len(prompt) for prompt in prompts]
        records["prompt_begin"] = share.prompt_begin + np.cumsum(records["prompt_count"]) - records["prompt_count"]
        records["max_tokens"] = most
        records["token_begin"] = share.token_begin + np.cumsum(records["max_tokens"]) - records["max_tokens"]
        records["top_p"], records["flags"] = 1, int(RecordFlags.IGNORE_EOS | RecordFlags.NO_PERSIST)
        return records

    def _submit(self, which: slice, slots: NDArray[np.uint64], records: NDArray[Any], prompts: Prompts) -> None:
        client, chosen = self._client, records[which]
        chosen["sequence"] = client.submitted + 1 + np.arange(len(chosen))
        counts = chosen["prompt_count"].astype(np.uint64)
        client.write_prompts(chosen["prompt_begin"].astype(np.uint64), counts, np.concatenate(prompts[which]))
        client.write_records(slots[which], chosen)
        words = client.read_words()[which]
        pending = [_ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, int(g), 0) for g in chosen["generation"]]
        assert client.publish(slots[which], words, np.array(pending, np.uint64)).all()
