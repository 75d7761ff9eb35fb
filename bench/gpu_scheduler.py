"""What the scheduler on the GPU costs: launches, scans, doorbells, and all that stands between two steps.

    python -m bench.gpu_scheduler OUT.json [--steps 1000000]
    python -m bench.gpu_scheduler OUT.json --builds ["as it is" ...]

With --builds it compares ways to build the scheduler (tests/gpu/scheduler/builds.py) by doorbells and steps; else it
measures the one that there is.
Needs one GPU of compute capability 9.0 or more; takes under a minute. The "model" of the step figures spins for
a set time and notes the GPU's clock as it begins and ends, so `between steps` is exact, step by step: from the
end of a graph (its last node stores the step's number) to the first instruction of the next.
"""

import argparse
import functools
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.gpu.doorbells import doorbells
from bench.gpu.launches import Launches, scans
from bench.gpu.scheduler_rig import KEPT, SOURCE, Client, TimedEngine, read, serving, spread
from services.gpu_backend.device import build, driver
from services.gpu_backend.device.device_scheduler import DeviceScheduler
from services.gpu_backend.device.driver import Arguments, Device, Module, Stream
from services.gpu_backend.device.ring_memory import DeviceRing, HostRing
from services.gpu_backend.device.settings import MOST_LAUNCHES
from tests.gpu.scheduler.builds import BUILDS, scheduler_of

DOORBELLS = ((200, 2000), (4200, 1500))
"""Microseconds of a step, submits; 4,200 are those of Llama-3 8B's shape."""


class ProfiledScheduler(DeviceScheduler):
    source = Path(__file__).parent / "gpu/scheduler_profile.cu"

    def marks(self) -> dict[str, Any]:
        """Of the commonest kind of turn: mean ns at each barrier since the last step was seen to be done."""
        address, count = self._module.variable("profile")
        table = read(address, count // 8, np.uint64).reshape(64, 65)
        kind = int(table[:, 64].argmax())
        turns = int(table[kind, 64])
        return {"turns": turns, "ns": [round(float(total) / max(turns, 1)) for total in table[kind, : kind + 1]]}


def recovery(numbers: NDArray[Any], between: NDArray[Any]) -> dict[str, Any]:
    """What a relaunch adds to the gap before its step, over the steps of a launch window: by the steps' numbers, as
    other gaps are long too (here all sequences need a page in the same step). `after`: steps of a window before it."""
    medians = [float(np.median(between[numbers % MOST_LAUNCHES == i])) for i in range(MOST_LAUNCHES)]
    slowest = int(np.argmax(medians))
    extra = (medians[slowest] - float(np.median(between))) / 1000
    return {"relaunch_adds_us": round(extra, 3), "recovery_us_a_step": round(extra / MOST_LAUNCHES, 4),
            "after": slowest or MOST_LAUNCHES}  # fmt: skip


def steps(
    device: Device, batch: int, nanoseconds: int, count: int, scheduler: type[DeviceScheduler] = DeviceScheduler
) -> dict[str, Any]:
    """`batch` sequences decode `count` tokens each; the last steps are looked at."""
    with serving(device, nanoseconds, HostRing, scheduler=scheduler) as rig:
        client = Client(rig, 4000)
        for slot in range(batch):
            client.write(slot, 4, count)
        client.ring()
        rig.until(lambda: rig.scheduler.counters()["finished"] == batch)
        rig.scheduler.stop(5)
        counters, engine = rig.scheduler.counters(), rig.engine
        assert isinstance(engine, TimedEngine)
        begin, _, done = engine.times()
        last = counters["decode_launches"] + counters["prefill_launches"]
        numbers = np.arange(last - min(last - 50, count * 3 // 4), last - 2)
        order, following = numbers % KEPT, (numbers + 1) % KEPT
        between = begin[following] - done[order]
        return {
            "batch": batch, "model_us": nanoseconds / 1000, "steps": last, "relaunches": counters["relaunches"],
            "launch_errors": rig.scheduler.launch_errors, "turns": counters["turns"],
            "graph_us": spread(done[order] - begin[order]), "between_steps_us": spread(between),
            "period_us": spread(begin[following] - begin[order]),
            **recovery(numbers, between),
        }  # fmt: skip


def profile(device: Device, batch: int) -> dict[str, Any]:
    with serving(device, 50_000, HostRing, scheduler=ProfiledScheduler) as rig:
        client = Client(rig, 4000)
        for slot in range(batch):
            client.write(slot, 4, 1500)
        client.ring()
        rig.until(lambda: rig.scheduler.counters()["finished"] == batch)
        rig.scheduler.stop(5)
        assert isinstance(rig.scheduler, ProfiledScheduler)
        return {"batch": batch, **rig.scheduler.marks()}


def build_of(name: str, device: Device, module: Module, stream: Stream) -> dict[str, Any]:
    """Doorbells and steps of one build."""
    with tempfile.TemporaryDirectory() as folder:
        kind = scheduler_of(name, Path(folder))
        bells = doorbells(device, module, stream, DOORBELLS[1][0], 1000, kind)
        return {"doorbell": bells, "steps": [steps(device, batch, 100_000, 3000, kind) for batch in (1, 16, 64, 256)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--doorbells", action="store_true", help="nothing else")
    parser.add_argument("--builds", nargs="*", choices=list(BUILDS), help="compares these; no name: all")
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
    if given.builds is not None:
        for name in given.builds or BUILDS:
            add(name, functools.partial(build_of, name, device, module, stream))
        return
    launches = Launches(module, stream)
    add("empty_graph", lambda: launches.run(given.steps, 120))
    add("tail_launch_each_step", lambda: launches.run(20_000, 1))
    add("launches_until_one_is_refused", lambda: launches.run(5000, 5000)["failed_at"])
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
        lambda: [steps(device, b, ns, 3900 if ns == 0 else 3000) for ns in (0, 100_000) for b in (1, 16, 64, 256)],
    )
    add("total_s", lambda: round(time.perf_counter() - begin, 1))


if __name__ == "__main__":
    main()
