"""What the parts of bench.gpu_scheduler share: a scheduler over steps that spin for a set time and note the GPU's clock
as they begin and end, and a front end in this process."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric._ring import Finish, SlotState
from services.fabric.ring.layout import HEADER, RECORD, REPORT
from services.gpu_backend.device import driver
from services.gpu_backend.device.device_scheduler import DeviceScheduler
from services.gpu_backend.device.driver import Arguments, Device, Graph
from services.gpu_backend.device.settings import DeviceSettings
from services.gpu_backend.engines.cuda.contract import StepMemory
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu.scheduler.rig import Rig, ToyEngine

SOURCE = Path(__file__).with_name("scheduler.cu")
TRACE = np.dtype([(name, "<u8") for name in ("nanoseconds", "capacity", "begin", "end", "done")])
KEPT = 1 << 13


def spread(ns: NDArray[Any]) -> dict[str, float]:
    """In microseconds."""
    p50, p99, most = np.percentile(ns, [50, 99, 100]) / 1000
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3), "max": round(float(most), 3),
            "mean": round(float(ns.mean()) / 1000, 3)}  # fmt: skip


def word_at(array: Any) -> ctypes.c_uint64:
    """A word of memory, to be read and written in tens of nanoseconds."""
    return ctypes.c_uint64.from_address(array.ctypes.data)


def read(address: int, count: int, dtype: Any) -> NDArray[Any]:
    return driver.copy_out(address, count * np.dtype(dtype).itemsize).view(dtype)


class TimedEngine(ToyEngine):
    source = SOURCE

    def __init__(self, device: Device, max_context: int, nanoseconds: int = 0) -> None:
        super().__init__(device, max_context)
        self.rings = [driver.allocate(8 * KEPT) for _ in range(3)]
        self.trace = driver.allocate(TRACE.itemsize)
        driver.copy_in(self.trace, np.array([(nanoseconds, KEPT, *self.rings)], TRACE))

    def add_nodes(self, graph: Graph, rows: int, memory: StepMemory) -> None:
        arguments = Arguments([np.array([memory.address], np.uint64), np.array([self.trace], np.uint64)])
        graph.add(self.module.function("timed_step"), 1, 256, arguments)
        graph.add(self.module.function("timed_done"), 1, 1, arguments)

    def times(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        begin, end, done = (read(ring, KEPT, np.uint64).astype(np.int64) for ring in self.rings)
        return begin, end, done


class Client:
    """A front end in this process, of place 0."""

    def __init__(self, rig: Rig, room: int) -> None:
        self.share, buffer, at = rig.ring.share(0), rig.ring.buffer, rig.ring.geometry.fields()
        rig.ring.grant(self.share)
        slots = rig.ring.geometry.slots
        self.header: Any = buffer[: HEADER.itemsize].view(HEADER)[0]
        self.words: NDArray[Any] = buffer[at["words_offset"] :][: 8 * slots].view(np.uint64)
        self.records: Any = buffer[at["records_offset"] :][: RECORD.itemsize * slots].view(RECORD)
        self.reports: Any = buffer[at["reports_offset"] :][: REPORT.itemsize * slots].view(REPORT)
        self.room, self.bell = room, 0
        self.bells = self.header["doorbells"]

    def write(self, slot: int, prompt_count: int, most: int) -> int:
        """Everything but the doorbell; the generation."""
        generation: int = _ring.next_generation(_ring.unpack_word(int(self.words[slot]))[2])
        record = np.zeros((), RECORD)
        record["generation"], record["sequence"] = generation, self.bell + 1
        record["prompt_begin"], record["prompt_count"] = 0, prompt_count
        record["token_begin"], record["max_tokens"], record["top_p"] = slot * self.room, most, 1
        self.records[slot] = record
        self.words[slot] = _ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, generation, 0)
        self.bell += 1
        return generation

    def ring(self) -> None:
        self.bells[0] = self.bell

    def state(self, slot: int) -> SlotState:
        return _ring.unpack_word(int(self.words[slot]))[0]

    def clear(self, slot: int, generation: int) -> None:
        self.words[slot] = _ring.slot_word(SlotState.EMPTY, Finish.NONE, generation, 0)


def serving(
    device: Device,
    nanoseconds: int,
    make_ring: Callable[[Any], Any],
    report_s: float = 1e-3,
    scheduler: type[DeviceScheduler] = DeviceScheduler,
) -> Rig:
    settings = SchedulerSettings(lanes=256, step_tokens=1024, pages=256 * 66)
    return Rig(
        device, settings, slots=4096, max_context=8192, own=DeviceSettings(deadline_s=30, report_s=report_s),
        engine=functools.partial(TimedEngine, nanoseconds=nanoseconds), name="gpu-bench", words=1 << 23,
        make_ring=make_ring, scheduler=scheduler,
    )  # fmt: skip
