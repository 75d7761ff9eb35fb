"""D14 by simulation: on both sides of each border of the closed form, do all storage NICs read at full speed?

A workload of nothing but hits, on engines that compute in no time, so that links alone decide. Inside the range the
storage NICs should be busy all the time; outside they can't be: a compute NIC or the DRAM carries what it can, and the
storage NICs reach the part of their speed that `ratio.loads` predicts."""

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import numpy as np

from services.global_scheduler.policy.ratio import BottleneckFree, NodeShape, bottleneck_free, loads
from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.driver import simulate
from services.global_scheduler.simulator.hardware import Efficiency, Hardware
from services.global_scheduler.simulator.shapes import GroupedAttention, ModelShape
from services.global_scheduler.simulator.systems import DUALPATH
from services.global_scheduler.simulator.workload import Workload

NIC = 50.0  # GB/s
SHAPES = (  # g, s, M in GB/s
    (8, 1, 500.0),
    (8, 1, 400.0),
    (8, 1, 300.0),
    (8, 1, 1000.0),
    (8, 2, 500.0),
    (8, 2, 1000.0),
    (8, 2, 600.0),
    (4, 1, 500.0),
    (4, 1, 300.0),
    (6, 1, 400.0),
)
MODEL = ModelShape(
    "hits only", 32, 32, 1, 1, 1, 1, 1, 0, 0, 0, 0, GroupedAttention(heads=1, kv_heads=8, head=128, element_bytes=2)
)
PROMPT, TURNS = 8_192, 24
MOST_NODES = 24


@dataclass(frozen=True)
class Check:
    shape: tuple[int, int, float]
    border: str
    link: str
    nodes: str
    inside: bool
    expected: float  # part of the storage NICs' speed
    measured: float

    @property
    def agrees(self) -> bool:
        """Inside all NICs are busy; outside they are as idle as the slowest link demands, or more: where two links are
        slow, the one's queues starve the other."""
        return self.measured >= 0.9 if self.inside else self.measured <= 1.02 * self.expected < 0.98


def hardware(gpus: int, storage_nics: int, dram: float) -> Hardware:
    perfect = Efficiency(1, 1, 1, 1, 1, 0, 0)
    return Hardware("ideal", gpus, storage_nics, NIC, dram, 1e5, 1e9, 1e9, 1e9, perfect)


def hits(agents: int) -> Workload:
    """Every turn reads PROMPT - 64 tokens and computes 64."""
    prompt = np.full(TURNS, PROMPT, np.int32)
    begin = np.array([0, TURNS], np.int32)
    cached, output = prompt - 64, np.full(TURNS, 2, np.int32)
    empty = np.zeros(0)
    return Workload(begin, prompt, cached, output, np.zeros(TURNS), empty, empty.astype(np.int32)).closed(agents)


def storage_speed(shape: tuple[int, int, float], prefill: int, decode: int) -> float:
    """Part of all storage NICs' bandwidth that is used in the middle of the run."""
    node = hardware(*shape)
    cluster = Cluster(MODEL, node, prefill, decode)
    agents = 24 * cluster.engines
    system = replace(DUALPATH, parameters=replace(DUALPATH.parameters, beta_tokens=1 << 22))
    outcome = simulate(cluster, system, hits(agents))
    finished = np.sort(outcome.records["finished"])
    first, last = len(finished) // 4, len(finished) * 3 // 4
    bytes_read = (last - first) * (PROMPT - 64) * MODEL.kv_token_bytes
    seconds = float(finished[last] - finished[first])
    return bytes_read / seconds / (cluster.nodes * node.storage_nics * NIC * 1e9)


def beside(border: Fraction, above: bool) -> tuple[int, int]:
    """Few nodes whose ratio is about a quarter above, or below, the border."""
    wanted = float(border) * (1.25 if above else 0.8)
    pairs = [(p, d) for p, d in product(range(1, MOST_NODES), repeat=2) if p + d <= MOST_NODES]
    good = [pair for pair in pairs if (Fraction(*pair) > border) == above and Fraction(*pair) != border]
    return min(good, key=lambda pair: (round(abs(pair[0] / pair[1] / wanted - 1), 1), sum(pair)))


def checks(shape: tuple[int, int, float]) -> list[Check]:
    gpus, storage_nics, dram = shape
    node = NodeShape(gpus, storage_nics, dram, NIC)
    free = bottleneck_free(node)
    assert free is not None, f"{shape}: no ratio is free of bottlenecks"
    return [check(shape, node, free, low, above) for low, above in product((True, False), repeat=2)]


def check(shape: tuple[int, int, float], node: NodeShape, free: BottleneckFree, low: bool, above: bool) -> Check:
    border, link = (free.low, free.low_link) if low else (free.high, free.high_link)
    prefill, decode = beside(border, above)
    expected = min(1.0, float(1 / max(loads(node, prefill, decode).values())))
    measured = storage_speed(shape, prefill, decode)
    inside = free.low <= Fraction(prefill, decode) <= free.high
    words = f"P/D {'>=' if low else '<='} {border}"
    return Check(shape, words, link.value, f"{prefill}P{decode}D", inside, expected, measured)
