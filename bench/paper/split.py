"""Split reads (D15): both sides read a part of each hit. What they gain, and when they lose."""

from collections.abc import Iterator

from bench.paper.clusters import SEED, cluster, offline, trajectories
from bench.paper.figure import Figure
from services.global_scheduler.simulator.online import serve
from services.global_scheduler.simulator.systems import SYSTEMS


def split() -> Iterator[Figure]:
    """JCT offline, and waiting for reads online, against DualPath without splitting."""
    for model, agents in (("ds-660b", 64), ("ds-660b", 1024), ("ds-27b", 64), ("ds-27b", 1024), ("qwen2.5-32b", 256)):
        whole, halves = (offline(cluster(model), s, "64k", agents) for s in ("dualpath", "split"))
        name = f"{model}, {agents} agents"
        yield Figure(f"{name}: JCT with split reads over without", None, halves.jct_s / whole.jct_s, "x")
        gain = halves.mean("read") / whole.mean("read")
        yield Figure(f"{name}: wait for reads with over without", None, gain, "x")
    for model, rate in (("ds-660b", 0.2), ("ds-27b", 0.2), ("qwen2.5-32b", 0.04)):
        found = [serve(cluster(model), SYSTEMS[s], trajectories("64k"), rate, SEED) for s in ("dualpath", "split")]
        name = f"{model} online at {rate:g} agents/s"
        yield Figure(f"{name}: read wait, whole", None, found[0].read_s * 1000, " ms")
        yield Figure(f"{name}: read wait, split", None, found[1].read_s * 1000, " ms")
        yield Figure(f"{name}: TTFT with split reads over without", None, found[1].ttft_s / found[0].ttft_s, "x")
