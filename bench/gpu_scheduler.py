"""What the scheduler on the GPU costs: launches, scans, doorbells, and all that stands between two steps.

    python -m bench.gpu_scheduler OUT.json [--steps 1000000]

Needs one GPU of compute capability 9.0 or more; takes under a minute. The "model" of the step figures spins for
a set time and notes the GPU's clock as it begins and ends, so `between steps` is exact, step by step: from the
end of a graph (its last node stores the step's number) to the first instruction of the next.
"""

import argparse
import ctypes
import functools
import json
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric._ring import Finish, SlotState
from services.fabric.ring.layout import HEADER, RECORD, REPORT
from services.gpu_backend.device import build, driver
from services.gpu_backend.device.device_scheduler import DeviceScheduler
from services.gpu_backend.device.driver import Arguments, Device, Graph, MappedMemory, Module, Stream
from services.gpu_backend.device.ring_memory import DeviceRing, HostRing
from services.gpu_backend.device.settings import MOST_LAUNCHES, DeviceSettings
from services.gpu_backend.engines.cuda.contract import StepMemory
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu.scheduler.rig import Rig, ToyEngine

SOURCE = Path(__file__).with_suffix(".cu")
TRACE = np.dtype([(name, "<u8") for name in ("nanoseconds", "capacity", "begin", "end", "done")])
CHAIN = np.dtype(
    [("executables", "<u8", (2,))]
    + [(name, "<u8") for name in ("step", "target", "done", "window", "error", "failed_at")]
    + [(name, "<u8") for name in ("latencies", "gaps", "capacity", "relaunches", "left_at")]
)
KEPT = 1 << 13
SAMPLES = 200_000
DOORBELLS = ((200, 2000), (4200, 1500))
"""Microseconds of a step, submits; 4,200 are those of Llama-3 8B's shape."""
COMPARED = 50
"""Submits between two comparisons of clocks."""


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


# --- launches ---


class Launches:
    def __init__(self, module: Module, stream: Stream) -> None:
        self.module, self.stream = module, stream
        self.chain = driver.allocate(CHAIN.itemsize)
        self.latencies, self.gaps = driver.allocate(4 * SAMPLES), driver.allocate(4 * SAMPLES)
        self.argument = Arguments([np.array([self.chain], np.uint64)])
        empty = Graph()
        empty.add(module.function("empty_step"), 1, 32, Arguments([]))
        empty.add(module.function("empty_done"), 1, 1, self.argument)
        self.empty = [driver.instantiate(empty.handle, stream) for _ in range(2)]
        own = Graph()
        own.add(module.function("chain_steps"), 1, 1, self.argument)
        self.own = driver.instantiate(own.handle, stream)
        stream.wait()

    def run(self, steps: int, window: int) -> dict[str, Any]:
        chain = np.zeros(1, CHAIN)
        chain["executables"] = [int(each) for each in self.empty]
        chain["target"], chain["window"], chain["capacity"] = steps, window, SAMPLES
        chain["latencies"], chain["gaps"] = self.latencies, self.gaps
        driver.copy_in(self.chain, chain)
        begin = time.perf_counter()
        self.stream.launch_graph(self.own)
        self.stream.wait()
        seconds = time.perf_counter() - begin
        end = read(self.chain, 1, CHAIN)[0]
        relaunches = int(end["relaunches"])
        latencies = read(self.latencies, min(int(end["step"]), SAMPLES), np.uint32)
        gaps = read(self.gaps, min(relaunches, SAMPLES), np.uint32)
        return {
            "steps": int(end["step"]), "error": int(end["error"]), "failed_at": int(end["failed_at"]),
            "period_us": round(seconds / steps * 1e6, 3), "launch_to_detected_us": spread(latencies),
            "relaunches": relaunches, "relaunch_us": spread(gaps) if relaunches else None,
            "relaunch_us_a_step": round(float(gaps.mean()) / 1000 / window, 4) if relaunches else None,
        }  # fmt: skip

    def from_host(self, times: int = 5000) -> dict[str, float]:
        took = np.empty(times)
        for i in range(times):
            begin = time.perf_counter_ns()
            self.stream.launch_graph(self.empty[0])
            self.stream.wait()
            took[i] = time.perf_counter_ns() - begin
        return spread(took)


# --- scans ---


def scans(module: Module, stream: Stream, rig: Rig, times: int = 3000) -> dict[str, Any]:
    """Of 4,096 slots, by a stopped scheduler's own memories."""
    mission = rig.scheduler._mission.copy()
    took, found = driver.allocate(4 * times), driver.allocate(64)
    count = np.array([times], np.uint32)
    pointers = [np.array([address], np.uint64) for address in (took, found)]
    stream.launch(module.function("scan_slots"), 1, 288, Arguments([mission, count, *pointers]))
    stream.wait()
    scan = spread(read(took, times, np.uint32)[100:])
    stream.launch(module.function("look_once"), 1, 32, Arguments([mission, count, pointers[0]]))
    stream.wait()
    return {"scan_4096_us": scan, "one_line_us": spread(read(took, times, np.uint32)[100:])}


# --- the scheduler's own steps ---


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


class ProfiledScheduler(DeviceScheduler):
    source = Path(__file__).with_name("gpu_scheduler_profile.cu")

    def marks(self) -> dict[str, Any]:
        """Of the commonest kind of turn: mean ns at each barrier since the last step was seen to be done."""
        address, count = self._module.variable("profile")
        table = read(address, count // 8, np.uint64).reshape(64, 65)
        kind = int(table[:, 64].argmax())
        turns = int(table[kind, 64])
        return {"turns": turns, "ns": [round(float(total) / max(turns, 1)) for total in table[kind, : kind + 1]]}


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


def recovery_us(between: NDArray[Any]) -> float:
    """What a relaunch adds to the gap before its step, over the steps of a launch window."""
    relaunches = np.sort(between)[-max(1, len(between) // MOST_LAUNCHES) :]
    return round(float(relaunches.mean() - np.median(between)) / 1000 / MOST_LAUNCHES, 4)


def steps(device: Device, batch: int, nanoseconds: int, count: int) -> dict[str, Any]:
    """`batch` sequences decode `count` tokens each; the last steps are looked at."""
    with serving(device, nanoseconds, HostRing) as rig:
        client = Client(rig, 4000)
        for slot in range(batch):
            client.write(slot, 4, count)
        client.ring()
        rig.until(lambda: rig.scheduler.counters()["finished"] == batch, 20)
        rig.scheduler.stop(5)
        counters, engine = rig.scheduler.counters(), rig.engine
        assert isinstance(engine, TimedEngine)
        begin, _, done = engine.times()
        last = counters["decode_launches"] + counters["prefill_launches"]
        order = np.arange(last - min(last - 50, count * 3 // 4), last - 2) % KEPT
        following = (order + 1) % KEPT
        between = begin[following] - done[order]
        return {
            "batch": batch, "model_us": nanoseconds / 1000, "steps": last, "relaunches": counters["relaunches"],
            "launch_errors": rig.scheduler.launch_errors, "turns": counters["turns"],
            "graph_us": spread(done[order] - begin[order]), "between_steps_us": spread(between),
            "period_us": spread(begin[following] - begin[order]),
            "recovery_us_a_step": recovery_us(between),
        }  # fmt: skip


def profile(device: Device, batch: int) -> dict[str, Any]:
    with serving(device, 50_000, HostRing, scheduler=ProfiledScheduler) as rig:
        client = Client(rig, 4000)
        for slot in range(batch):
            client.write(slot, 4, 1500)
        client.ring()
        rig.until(lambda: rig.scheduler.counters()["finished"] == batch, 20)
        rig.scheduler.stop(5)
        assert isinstance(rig.scheduler, ProfiledScheduler)
        return {"batch": batch, **rig.scheduler.marks()}


class Clocks:
    """Unix minus GPU time, as two who write to each other tell it: from the quickest of many exchanges, in whose
    middle the GPU looked at its clock. It is off by less than half that exchange. Made before a scheduler runs."""

    def __init__(self, module: Module, stream: Stream) -> None:
        self._function, self._stream, self._page = module.function("echo"), stream, MappedMemory(4096)
        self._words = [word_at(self._page.view[64 * i :]) for i in range(3)]
        self.readings: list[tuple[int, int]] = []
        """When, in unix time, and the difference then; both in ns."""
        self.longest_exchange_ns = 0
        self.read()

    def read(self, times: int = 500) -> None:
        address, count = np.array([self._page.address], np.uint64), np.array([times], np.uint32)
        for word in self._words:
            word.value = 0
        self._stream.launch(self._function, 1, 1, Arguments([address, count]))
        best = (1 << 62, 0, 0)
        for i in range(1, times + 1):
            before = time.time_ns()
            self._words[0].value = i
            while self._words[2].value != i:
                pass
            after = time.time_ns()
            middle = (before + after) // 2
            best = min(best, (after - before, middle, middle - self._words[1].value))
        self._stream.wait()
        self.readings.append(best[1:])
        self.longest_exchange_ns = max(self.longest_exchange_ns, best[0])

    def difference(self, at: NDArray[np.int64]) -> NDArray[np.float64]:
        times, differences = np.array(self.readings, np.int64).T
        first = differences[0]  # float64 has not room for unix time in ns
        found: NDArray[np.float64] = np.interp(at - times[0], times - times[0], differences - first)
        return found

    def close(self) -> None:
        self._page.close()


def doorbells(device: Device, module: Module, stream: Stream, step_us: int, times: int) -> dict[str, Any]:
    """Submits, at any moment of a decode of `step_us` a step. `seen`: the turn that claims the request began.

    The clocks of host and GPU drift apart by some microseconds a second, and not evenly: they are compared over and
    over.
    """
    clocks = Clocks(module, stream)
    with serving(device, 1000 * step_us, HostRing) as rig:
        client, dice = Client(rig, 2500), random.Random(1)
        client.write(0, 4, 8000)  # as long as four slots have room
        client.ring()
        rig.until(lambda: rig.scheduler.counters()["decode_launches"] > 5)
        shift = int(rig.scheduler._mission["clock_offset_ns"][0])
        rungs, claims, answered = [], [], []
        for i in range(times):
            if i % COMPARED == 0:
                clocks.read()
            slot = 4 + i % 400
            until = time.perf_counter_ns() + dice.randrange(2000 * step_us)
            generation = client.write(slot, 1, 1)
            word, bell = word_at(client.words[slot : slot + 1]), word_at(client.bells)
            before, count = word.value, client.bell
            while time.perf_counter_ns() < until:
                pass
            rung = time.time_ns()
            bell.value = count
            while word.value == before:
                pass
            answered.append(time.time_ns() - rung)
            while client.state(slot) != SlotState.DECODE_COMPLETED:
                pass
            rungs.append(rung)
            claims.append((int(client.reports[slot]["claimed_ns"]) - shift) % (1 << 64))
            client.clear(slot, generation)
        clocks.read()
        done = rig.scheduler.counters()
    clocks.close()
    bells, first = np.array(rungs, np.int64), clocks.readings[0][1]
    seen = (np.array(claims, np.int64) + first - bells) + clocks.difference(bells)
    return {
        "step_us": step_us, "seen_us": spread(seen),
        "clocks_agree_within_us": round(clocks.longest_exchange_ns / 2000, 2),
        "claim_visible_to_front_end_us": spread(np.array(answered)),
        "decode_steps_meanwhile": done["decode_launches"], "still_decoding": done["running"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--doorbells", action="store_true", help="nothing else")
    given = parser.parse_args()
    device = Device()
    begin = time.perf_counter()
    module, stream = Module(build.cubin(SOURCE, device.capability)), Stream()
    build.cubin(build.SCHEDULER_SOURCE, device.capability)
    found: dict[str, Any] = {
        "machine": {"gpu": device.name, "cpu": platform.processor(), "date": time.strftime("%Y-%m-%d")},
        "build_s": round(time.perf_counter() - begin, 1),
    }

    def add(name: str, measure: Callable[[], Any]) -> None:
        found[name] = measure()
        print(name, json.dumps(found[name]), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")

    ticks = driver.allocate(8 * 200)
    stream.launch(
        module.function("clock_ticks"), 1, 1, Arguments([np.array([ticks], np.uint64), np.array([200], np.uint32)])
    )
    stream.wait()
    found["clock_tick_ns"] = float(np.median(read(ticks, 200, np.uint64)))
    if given.doorbells:
        add("doorbell_pinned", lambda: [doorbells(device, module, stream, *each) for each in DOORBELLS])
        return
    launches = Launches(module, stream)
    add("empty_graph", lambda: launches.run(given.steps, 120))
    add("tail_launch_each_step", lambda: launches.run(20_000, 1))
    add("host_launch_and_sync_us", launches.from_host)
    for name, make_ring in (("gpu_memory", DeviceRing), ("pinned_memory", HostRing)):
        with serving(device, 0, HostRing) as rig:
            rig.scheduler.stop(5)
            other = make_ring(rig.ring.buffer) if make_ring is DeviceRing else rig.memory
            rig.scheduler._mission["ring"] = other.address
            add(f"scan_{name}", functools.partial(scans, module, stream, rig))
            if other is not rig.memory:
                other.close()
    add("barriers_of_a_turn", lambda: [profile(device, batch) for batch in (1, 16, 256)])
    add("doorbell_pinned", lambda: [doorbells(device, module, stream, *each) for each in DOORBELLS])
    add(
        "steps",
        lambda: [steps(device, b, ns, 3900 if ns == 0 else 1500) for ns in (0, 100_000) for b in (1, 16, 64, 256)],
    )
    add("total_s", lambda: round(time.perf_counter() - begin, 1))


if __name__ == "__main__":
    main()
