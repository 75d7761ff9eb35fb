"""What a run used, second by second: bytes of every link, CPU of every process and of the machine."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.cluster.network import link_bytes
from bench.common.readings import cpu_s

TICK = os.sysconf("SC_CLK_TCK")
SATURATED = 0.95
"""Of the machine's cores, in a second, or of one core, by a process in the whole run: more is no room for anything."""
MOST_SECONDS = 0.05
"""Of a run's seconds, those that may be so."""


@dataclass(frozen=True)
class Sample:
    at: float
    links: dict[str, tuple[int, int]]  # received, sent
    processes: dict[str, float]  # CPU seconds
    busy_s: float  # of all cores
    stolen_s: float  # by other machines on the same host


@dataclass
class Watch:
    """`run` it as a task while something is measured.

    processes  pid by name
    devices    by link's name: a process in its namespace, and the device there
    """

    processes: Mapping[str, int]
    devices: Mapping[str, tuple[int, str]]
    samples: list[Sample] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            self.take()
            await asyncio.sleep(1.0 - time.monotonic() % 1.0)

    def take(self) -> None:
        links = {name: link_bytes(pid, [device])[device] for name, (pid, device) in self.devices.items()}
        processes = {name: cpu_s(pid) for name, pid in self.processes.items()}
        self.samples.append(Sample(time.monotonic(), links, processes, *machine_seconds()))

    # --- afterwards ---

    @property
    def seconds(self) -> float:
        return self.samples[-1].at - self.samples[0].at

    def moved(self) -> dict[str, tuple[int, int]]:
        """Bytes received and sent by each link in the whole run."""
        first, last = self.samples[0].links, self.samples[-1].links
        return {name: (last[name][0] - first[name][0], last[name][1] - first[name][1]) for name in last}

    def sent_each_second(self, name: str) -> list[float]:
        """Bytes/s that a link's device sent."""
        pairs = zip(self.samples, self.samples[1:], strict=False)
        return [(b.links[name][1] - a.links[name][1]) / (b.at - a.at) for a, b in pairs]

    def cores_by_process(self) -> dict[str, float]:
        """Cores that each process used on average."""
        first, last = self.samples[0].processes, self.samples[-1].processes
        return {name: (last[name] - first[name]) / self.seconds for name in last}

    def busy_each_second(self) -> list[float]:
        """Part of the machine that was not idle."""
        cores = os.cpu_count() or 1
        pairs = zip(self.samples, self.samples[1:], strict=False)
        return [(b.busy_s - a.busy_s) / (b.at - a.at) / cores for a, b in pairs]

    def stolen(self) -> float:
        return (self.samples[-1].stolen_s - self.samples[0].stolen_s) / self.seconds / (os.cpu_count() or 1)

    def why_saturated(self) -> str:
        """Whether CPU bound what links were to bind; empty if not."""
        busy = self.busy_each_second()
        if (full := sum(part > SATURATED for part in busy)) > MOST_SECONDS * len(busy):
            return f"the cores were over {SATURATED:.0%} busy in {full} of {len(busy)} seconds"
        for name, cores in self.cores_by_process().items():
            if cores > SATURATED:
                return f"{name} used {cores:.2f} cores: it has one for its event loop"
        return ""


def machine_seconds() -> tuple[float, float]:
    """(busy, stolen) of all cores since the machine's start."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, stolen = fields
    return (user + nice + system + irq + softirq) / TICK, stolen / TICK
