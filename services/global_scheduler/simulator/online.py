"""Online serving: does a rate of agents hold the SLO, and which is the highest that does."""

from dataclasses import dataclass, replace

from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.driver import TIMING, Timing, simulate
from services.global_scheduler.simulator.outcome import Outcome
from services.global_scheduler.simulator.systems import System
from services.global_scheduler.simulator.workload import Workload


@dataclass(frozen=True)
class Slo:
    """On means over turns, as the paper's: TTFT <= 4 s, TPOT <= 50 ms."""

    ttft_s: float = 4.0
    tpot_s: float = 0.05


@dataclass(frozen=True)
class Window:
    """Agents arrive for `warm_s + measured_s`; turns that arrive in the second part count."""

    warm_s: float = 1_500.0
    measured_s: float = 1_000.0

    @property
    def end_s(self) -> float:
        return self.warm_s + self.measured_s


@dataclass(frozen=True)
class Service:
    """How a cluster served a rate of agents."""

    agents_per_s: float
    ttft_s: float
    ttst_s: float
    tpot_s: float
    read_s: float
    outcome: Outcome

    def holds(self, slo: Slo) -> bool:
        return self.ttft_s <= slo.ttft_s and self.tpot_s <= slo.tpot_s


WINDOW, SLO = Window(), Slo()


def serve(
    cluster: Cluster,
    system: System,
    workload: Workload,
    agents_per_s: float,
    seed: int = 0,
    window: Window = WINDOW,
    timing: Timing = TIMING,
) -> Service:
    """Poisson arrivals at this rate."""
    arriving = workload.open(agents_per_s, window.end_s, seed)
    outcome = simulate(cluster, system, arriving, timing, until_s=window.end_s)
    ttft, ttst, tpot, read = (outcome.mean(name, window.warm_s) for name in ("ttft", "ttst", "tpot", "read"))
    return Service(agents_per_s, ttft, ttst, tpot, read, outcome)


def capacity(
    cluster: Cluster,
    system: System,
    workload: Workload,
    slo: Slo = SLO,
    seed: int = 0,
    window: Window = WINDOW,
    timing: Timing = TIMING,
    start: float = 0.1,
    precision: float = 0.04,
) -> Service | None:
    """The highest rate that holds the SLO, to a relative `precision`, by doubling and bisection; None if not even a
    hundredth of `start` does. A run that goes wrong is stopped by its window, so overload costs no more than load."""
    held: Service | None = None
    low, high = 0.0, start
    while True:
        tried = serve(cluster, system, workload, high, seed, window, timing)
        if not tried.holds(slo):
            break
        held, low, high = tried, high, high * 2
    while high - low > precision * high and high > start / 100:
        middle = (low + high) / 2
        tried = serve(cluster, system, workload, middle, seed, window, timing)
        if tried.holds(slo):
            held, low = tried, middle
        else:
            high = middle
    return held


def without_records(service: Service) -> Service:
    """Small enough to keep many of."""
    return replace(service, outcome=replace(service.outcome, records=service.outcome.records[:0]))
