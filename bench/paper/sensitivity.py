"""How far the figures that differ from the paper's hang on what the paper doesn't say.

Each row changes one assumption of docs/simulator.md and nothing else. None of the changed values is used anywhere: the
table says what an explanation in docs/simulator.md is worth, it doesn't choose."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import mean

from bench.paper.clusters import cluster, offline
from bench.paper.figure import Figure
from bench.paper.offline import RATIOS
from services.global_scheduler.simulator.cluster import Cluster

HBM_CAPACITIES = (0.78, 0.785, 0.79, 0.8)
"""Parts of HBM that weights and KV may use; 0.79 is the calibration's."""
ACTIVE_EXPERTS = (6, 12, 18)
"""Of DS 27B a token; 6 is the assumed shape's."""
APPENDS = (2.0, 3.0, 4.0)


def sensitivity() -> Iterator[Figure]:
    """One assumption changed at a time, and the figures that it moves."""
    yield from room()
    yield from arithmetic()
    yield from appends()


def room() -> Iterator[Figure]:
    """Layerwise prefill gains room in HBM, so what it gains hangs on how much room there was."""
    for capacity in HBM_CAPACITIES:
        where = with_room(cluster("ds-660b"), capacity)
        jct = {s: offline(where, s, "64k", 2048).jct_s for s in ("basic", "layerwise", "dualpath-rr", "dualpath")}
        for system, paper in (("layerwise", 17.21), ("dualpath-rr", 38.19), ("dualpath", 45.62)):
            less = 100 * (1 - jct[system] / jct["basic"])
            yield Figure(f"ablation, {system}", paper, less, "%", f"hbm_capacity {capacity:g}")


def arithmetic() -> Iterator[Figure]:
    """DS 27B's shape is a guess: with more arithmetic a token, storage limits less."""
    for experts in ACTIVE_EXPERTS:
        active = smaller(experts, 1, 1).model
        billions = (active.engine_parameters + active.active_expert_parameters) / 1e9
        note = f"{experts} experts a token: {billions:.1f} billion parameters"
        jct = {}
        for nodes in RATIOS:
            where = smaller(experts, *nodes)
            for system in ("basic", "dualpath"):
                jct[system, nodes] = offline(where, system, "64k", 1024).jct_s
        gains = [jct["basic", nodes] / jct["dualpath", nodes] for nodes in RATIOS]
        oracle = offline(smaller(experts, 1, 1), "oracle", "64k", 1024).jct_s
        yield Figure("27B, 1P1D: DualPath over Basic", 1.78, gains[0], "x", note)
        yield Figure("27B, 1P1D: oracle ahead of DualPath", 1.85, jct["dualpath", (1, 1)] / oracle, "x", note)
        yield Figure("27B, P/D sweep, mean gain", 1.64, mean(gains), "x", note)
        yield Figure("27B, P/D sweep, most gain", 2.46, max(gains), "x", note)


def appends() -> Iterator[Figure]:
    """Long appends are bound by prefill's arithmetic, so by how fast that is; and by how long 'long' is."""
    for factor in APPENDS:
        basic, dual = (offline(cluster("ds-660b"), s, "64k", 1024, factor).jct_s for s in ("basic", "dualpath"))
        yield Figure("append sweep: DualPath over Basic", 1.82, basic / dual, "x", f"appends x{factor:g}")


def with_room(where: Cluster, capacity: float) -> Cluster:
    efficiency = replace(where.hardware.efficiency, hbm_capacity=capacity)
    return replace(where, hardware=replace(where.hardware, efficiency=efficiency))


def smaller(experts: int, prefill: int, decode: int) -> Cluster:
    """DS 27B with so many experts a token."""
    where = cluster("ds-27b", prefill, decode)
    return replace(where, model=replace(where.model, experts_active=experts))
