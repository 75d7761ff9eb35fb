"""Launches of graphs from the GPU and from the host, and scans of slots, for bench.gpu_scheduler."""

import time
from typing import Any

import numpy as np

from bench.gpu.scheduler_rig import read, spread
from services.gpu_backend.device import driver
from services.gpu_backend.device.driver import Arguments, Graph, Module, Stream
from tests.gpu.scheduler.rig import Rig

CHAIN = np.dtype(
    [("executables", "<u8", (2,))]
    + [(name, "<u8") for name in ("step", "target", "done", "window", "error", "failed_at")]
    + [(name, "<u8") for name in ("latencies", "gaps", "capacity", "relaunches", "left_at")]
)
SAMPLES = 200_000


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
