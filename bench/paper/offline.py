"""The paper's offline experiments: JCT by model, append length, ratio of nodes; ablation; balance; scale."""

from collections.abc import Iterator
from itertools import product
from statistics import mean

from bench.paper.clusters import cluster, offline
from bench.paper.figure import Figure

GRID = {"ds-660b": (1024, 2048), "ds-27b": (512, 1024), "qwen2.5-32b": (256, 512)}
LENGTHS = ("32k", "64k")
APPENDS = (0.5, 1.0, 2.0, 4.0)
RATIOS = ((1, 1), (2, 1), (1, 2))
RATIO_AGENTS = (256, 512, 1024)


def jct_660b() -> Iterator[Figure]:
    """DS 660B on 2P4D: completion time of N agents that start at once, against one read path and the oracle."""
    yield from jct("ds-660b", 1.87)


def jct_27b() -> Iterator[Figure]:
    """DS 27B on 1P1D, likewise."""
    yield from jct("ds-27b", 1.78, behind=(1.09, 1.85))


def jct_qwen() -> Iterator[Figure]:
    """Qwen2.5-32B on 1P2D, likewise; the copy of the paper at hand has no figure for it."""
    yield from jct("qwen2.5-32b", None)


def jct(model: str, best: float | None, behind: tuple[float | None, float | None] = (None, None)) -> Iterator[Figure]:
    faster, later = {}, []
    for length in LENGTHS:
        for agents in GRID[model]:
            jcts = {s: offline(cluster(model), s, length, agents).jct_s for s in ("basic", "dualpath", "oracle")}
            name = f"{length}, {agents} agents"
            faster[name] = jcts["basic"] / jcts["dualpath"]
            later.append(jcts["dualpath"] / jcts["oracle"])
            yield Figure(f"{name}: DualPath over Basic", None, faster[name], "x")
    at = max(faster, key=lambda name: faster[name])
    yield Figure("DualPath over Basic, best of the grid", best, faster[at], "x", f"at {at}")
    yield Figure("oracle ahead of DualPath, least", behind[0], min(later), "x")
    yield Figure("oracle ahead of DualPath, most", behind[1], max(later), "x")


def append() -> Iterator[Figure]:
    """DS 660B, 64K, 1,024 agents; appends scaled, contexts kept."""
    gains = {}
    for factor in APPENDS:
        basic, dual = (offline(cluster("ds-660b"), s, "64k", 1024, factor).jct_s for s in ("basic", "dualpath"))
        gains[factor] = basic / dual
        yield Figure(f"appends x{factor:g}: DualPath over Basic", None, gains[factor], "x")
    yield Figure("append sweep, least gain", 1.82, min(gains.values()), "x")
    yield Figure("append sweep, most gain", 1.99, max(gains.values()), "x")


def ratio() -> Iterator[Figure]:
    """DS 27B on 1P1D, 2P1D and 1P2D, 64K. How many agents the paper's runs have, the copy at hand doesn't say."""
    jct = {}
    for (prefill, decode), agents in product(RATIOS, RATIO_AGENTS):
        where = cluster("ds-27b", prefill, decode)
        for system in ("basic", "dualpath"):
            jct[system, where.name, agents] = offline(where, system, "64k", agents).jct_s
    gains = {(name, agents): jct["basic", name, agents] / jct["dualpath", name, agents] for _, name, agents in jct}
    for (name, agents), gain in gains.items():
        yield Figure(f"{name}, {agents} agents: DualPath over Basic", None, gain, "x")
    for agents in RATIO_AGENTS:
        mean_gain = mean(gain for (_, count), gain in gains.items() if count == agents)
        yield Figure(f"P/D sweep, mean gain at {agents} agents", 1.64, mean_gain, "x")
    yield Figure("P/D sweep, mean gain of all", 1.64, mean(gains.values()), "x")
    yield Figure("P/D sweep, most gain", 2.46, max(gains.values()), "x")
    most = RATIO_AGENTS[-1]
    yield Figure("Basic 1P1D over Basic 1P2D", 1.0, jct["basic", "1P1D", most] / jct["basic", "1P2D", most], "x")
    yield Figure("DualPath 1P1D over Basic 2P1D", 1.0, jct["dualpath", "1P1D", most] / jct["basic", "2P1D", most], "x")


def ablation() -> Iterator[Figure]:
    """DS 660B, 2P4D, 64K, 2,048 agents: what each part takes off Basic's JCT; and how even the load is."""
    runs = {s: offline(cluster("ds-660b"), s, "64k", 2048) for s in ("basic", "layerwise", "dualpath-rr", "dualpath")}
    published = {"layerwise": 17.21, "dualpath-rr": 38.19, "dualpath": 45.62}
    for system, paper in published.items():
        less = 100 * (1 - runs[system].jct_s / runs["basic"].jct_s)
        yield Figure(f"JCT less than Basic's: {system}", paper, less, "%")
    yield Figure("storage NIC max/avg, round robin", 1.53, runs["dualpath-rr"].nic_balance, "")
    yield Figure("storage NIC max/avg, scheduled", 1.18, runs["dualpath"].nic_balance, "")
    yield Figure("attention time max/avg, first 5 %", 1.06, runs["dualpath"].attention_balance, "")
    yield Figure("TPOT offline", None, runs["dualpath"].mean("tpot") * 1000, " ms")
