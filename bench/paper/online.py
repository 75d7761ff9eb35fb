"""The paper's online experiments: agents a second under the SLO, and the same at 22 times the size."""

from collections.abc import Iterator

from bench.paper.clusters import SEED, cluster, trajectories
from bench.paper.figure import Figure
from services.global_scheduler.simulator.online import Service, capacity, serve
from services.global_scheduler.simulator.systems import SYSTEMS

LENGTH = "64k"


def online() -> Iterator[Figure]:
    """The highest rate with mean TTFT <= 4 s and TPOT <= 50 ms."""
    published = {"ds-660b": 2.25, "ds-27b": 1.67}
    start = {"ds-660b": 0.15, "ds-27b": 0.2}
    for model, paper in published.items():
        rates = {}
        for system in ("basic", "dualpath"):
            best = capacity(cluster(model), SYSTEMS[system], trajectories(LENGTH), seed=SEED, start=start[model])
            assert best is not None, f"{model}, {system}: holds the SLO at no rate"
            rates[system] = best.agents_per_s
            yield Figure(f"{model} {system}: agents/s under the SLO", None, best.agents_per_s, "/s", _latencies(best))
        yield Figure(f"{model}: rate of DualPath over Basic", paper, rates["dualpath"] / rates["basic"], "x")


def online_scale() -> Iterator[Figure]:
    """DS 660B at the paper's rates: 0.4 agents/s on 2P4D, 8.8 on 44P88D."""
    for rate, nodes, ttft, ttst, tpot in ((0.4, (2, 4), 1.739, 0.228, 39), (8.8, (44, 88), 1.847, 0.194, 36)):
        where = cluster("ds-660b", *nodes)
        found = serve(where, SYSTEMS["dualpath"], trajectories(LENGTH), rate, SEED)
        name = f"{where.name} at {rate:g} agents/s"
        yield Figure(f"{name}: TTFT", ttft, found.ttft_s, " s")
        yield Figure(f"{name}: TTST", ttst, found.ttst_s, " s")
        yield Figure(f"{name}: TPOT", tpot, found.tpot_s * 1000, " ms")


def _latencies(found: Service) -> str:
    return f"TTFT {found.ttft_s:.2f} s, TTST {found.ttst_s:.3f} s, TPOT {found.tpot_s * 1000:.1f} ms"
