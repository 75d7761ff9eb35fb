"""How fast the simulator is, how its cost grows with the cluster, and that it repeats itself to the bit."""

import math
import resource
import time
from collections.abc import Iterator

from bench.paper.clusters import cluster, trajectories
from bench.paper.figure import Figure
from services.global_scheduler.simulator.driver import simulate
from services.global_scheduler.simulator.systems import SYSTEMS

UNITS = (1, 2, 4, 8, 16, 24)  # of 2P4D with 2,000 agents, 48 GPUs
SHORT = 16  # growth is measured with fewer agents a GPU


def growth() -> Iterator[Figure]:
    """CPU seconds of one core from 48 to 1,152 GPUs, agents in proportion; the exponent fitted to them."""
    points = []
    for units in UNITS:
        where = cluster("ds-660b", 2 * units, 4 * units)
        started = time.process_time()
        outcome = simulate(where, SYSTEMS["dualpath"], trajectories("64k").closed(2000 // SHORT * units))
        spent = time.process_time() - started
        points.append((math.log(units), math.log(spent)))
        yield Figure(f"{where.gpus} GPUs: CPU time of {outcome.turns:,} turns", None, spent, " s")
    yield Figure("growth: exponent (asked: at most 1.1)", None, slope(points), "")


def largest() -> Iterator[Figure]:
    """1,152 GPUs, 48,000 agents, one core (asked: under 45 minutes and 8 GB); beside 2P4D with 2,000."""
    wall, started = time.monotonic(), time.process_time()
    outcome = simulate(cluster("ds-660b", 48, 96), SYSTEMS["dualpath"], trajectories("64k").closed(48_000))
    spent, waited = time.process_time() - started, time.monotonic() - wall
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    yield Figure("turns", None, outcome.turns / 1e6, " million")
    yield Figure("CPU time", None, spent / 60, " min", f"{waited / 60:.1f} min by the clock, machine shared")
    yield Figure("a turn", None, spent / outcome.turns * 1e6, " us")
    yield Figure("memory, largest", None, memory, " GB")
    small = simulate(cluster("ds-660b"), SYSTEMS["dualpath"], trajectories("64k").closed(2_000))
    yield Figure("JCT 48P96D, 48,000 agents", 3201, outcome.jct_s, " s")
    yield Figure("JCT 2P4D, 2,000 agents", 3167, small.jct_s, " s")
    yield Figure("JCT 48P96D over 2P4D", 3201 / 3167, outcome.jct_s / small.jct_s, "x")
    yield Figure("storage NIC max/avg", None, outcome.nic_balance, "")
    yield Figure("decisions a second of simulated time", None, outcome.turns / outcome.jct_s, "/s")


def repeats() -> Iterator[Figure]:
    """The same seed twice: records of every turn compared byte for byte."""
    runs = [simulate(cluster("ds-660b"), SYSTEMS["dualpath"], trajectories("64k").closed(256)) for _ in range(2)]
    same = runs[0].records.tobytes() == runs[1].records.tobytes()
    yield Figure("same seed, same records of every turn", 1, float(same), "", "1: to the bit")


def slope(points: list[tuple[float, float]]) -> float:
    """Least squares."""
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    steepness: float = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return steepness
