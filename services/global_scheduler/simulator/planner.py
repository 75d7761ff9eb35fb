"""What to build from so many GPUs: the closed form's range (D14), and what the simulator finds best inside it (D15)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from services.global_scheduler.policy.chunk import Quota
from services.global_scheduler.policy.ratio import BottleneckFree, Bounds, NodeShape, bottleneck_free, bounds
from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.driver import Timing
from services.global_scheduler.simulator.hardware import Hardware
from services.global_scheduler.simulator.online import SLO, WINDOW, Service, Slo, Window, capacity, without_records
from services.global_scheduler.simulator.shapes import ModelShape
from services.global_scheduler.simulator.systems import DUALPATH, System
from services.global_scheduler.simulator.workload import Workload

ALPHAS = (1 << 16, 1 << 18)
BETAS = (1 << 19, 1 << 20)
QUOTAS_S = (0.15, 0.3)

Told = Callable[[str], None]
"""Told what is about to be simulated."""


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    nodes: int
    model: ModelShape
    hardware: Hardware
    workload: Workload
    slo: Slo = SLO
    window: Window = WINDOW
    system: System = DUALPATH
    seed: int = 0


@dataclass(frozen=True)
class Split:
    """A way to divide the nodes, and what it can carry."""

    prefill_nodes: int
    decode_nodes: int
    inside: bool  # the closed form's range
    service: Service | None  # None: it holds the SLO at no rate

    @property
    def name(self) -> str:
        return f"{self.prefill_nodes}P{self.decode_nodes}D"

    @property
    def agents_per_s(self) -> float:
        return self.service.agents_per_s if self.service else 0.0


@dataclass(frozen=True)
class Plan:
    constraints: tuple[Bounds, ...]  # each link's
    free: BottleneckFree | None
    splits: tuple[Split, ...]  # by prefill nodes
    best: Split
    alpha_tokens: int
    beta_tokens: int
    quota: Quota
    tuned_agents_per_s: float

    def cost_of_being_wrong(self) -> dict[str, float]:
        """Part of the best capacity that a node more or less for prefill loses."""
        best = self.best.agents_per_s
        beside = (self.best.prefill_nodes - 1, self.best.prefill_nodes + 1)
        return {s.name: 1 - s.agents_per_s / best for s in self.splits if s.prefill_nodes in beside}


def node_shape(hardware: Hardware) -> NodeShape:
    return NodeShape(hardware.gpus, hardware.storage_nics, hardware.dram_bytes_per_s, hardware.nic_gbytes_per_s * 1e9)


def plan(wish: Wish, told: Told = lambda _: None) -> Plan:
    """Every split of the nodes is simulated; the best one's alpha, beta and quota are tuned. Raises ValueError when no
    split holds the weights or the SLO."""
    shape = node_shape(wish.hardware)
    free = bottleneck_free(shape)
    splits, guess = [], 0.05 * wish.nodes
    for prefill_nodes in range(1, wish.nodes):
        cluster = _cluster(wish, prefill_nodes)
        try:
            cluster.config()
        except ValueError as error:
            told(str(error))
            continue
        told(f"capacity of {cluster.name}")
        service = capacity(cluster, wish.system, wish.workload, wish.slo, wish.seed, wish.window, start=guess)
        guess = service.agents_per_s if service else guess
        ratio = Fraction(prefill_nodes, wish.nodes - prefill_nodes)
        inside = free is not None and free.low <= ratio <= free.high
        kept = without_records(service) if service else None
        splits.append(Split(prefill_nodes, wish.nodes - prefill_nodes, inside, kept))
    best = max(splits, key=lambda split: split.agents_per_s, default=None)
    if best is None or best.service is None:
        raise ValueError(f"no split of {wish.nodes} nodes holds the SLO with {wish.model.name}; use more nodes")
    return Plan(tuple(bounds(shape)), free, tuple(splits), best, *_tune(wish, best, told))


def _cluster(wish: Wish, prefill_nodes: int) -> Cluster:
    decode_nodes = wish.nodes - prefill_nodes
    return Cluster(wish.model, wish.hardware, prefill_nodes, decode_nodes, prefill_nodes, decode_nodes)


def _tune(wish: Wish, best: Split, told: Told) -> tuple[int, int, Quota, float]:
    """One parameter after the other, at the best split: what carries the most agents a second."""
    assert best.service is not None
    cluster = _cluster(wish, best.prefill_nodes)
    parameters, quota = wish.system.parameters, Timing().quota
    found = (parameters.alpha_tokens, parameters.beta_tokens, quota)
    most = best.agents_per_s
    for alpha, beta, attention_s in _candidates(*found):
        told(f"alpha {alpha}, beta {beta}, quota {attention_s} s at {best.name}")
        system, timing = wish.system.tuned(alpha, beta), Timing(quota=Quota(attention_s, quota.tokens))
        service = capacity(cluster, system, wish.workload, wish.slo, wish.seed, wish.window, timing, start=most)
        if service and service.agents_per_s > most:
            most, found = service.agents_per_s, (alpha, beta, timing.quota)
    return *found, most


def _candidates(alpha: int, beta: int, quota: Quota) -> Iterator[tuple[int, int, float]]:
    yield from ((other, beta, quota.attention_s) for other in ALPHAS if other != alpha)
    yield from ((alpha, other, quota.attention_s) for other in BETAS if other != beta)
    yield from ((alpha, beta, other) for other in QUOTAS_S if other != quota.attention_s)
