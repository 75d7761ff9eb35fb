"""What to build from so many GPUs: the closed form's range (D14), and what the simulator finds best inside it (D15)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing import active_children, get_context
from typing import TypeVar

from services.global_scheduler.policy.chunk import Quota
from services.global_scheduler.policy.ratio import BottleneckFree, Bounds, NodeShape, bottleneck_free, bounds
from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.driver import TIMING, Timing
from services.global_scheduler.simulator.hardware import Hardware
from services.global_scheduler.simulator.online import SLO, WINDOW, Service, Slo, Window, capacity, without_records
from services.global_scheduler.simulator.shapes import ModelShape
from services.global_scheduler.simulator.systems import DUALPATH, System
from services.global_scheduler.simulator.workload import Workload

ALPHAS = (1 << 16, 1 << 18)
BETAS = (1 << 19, 1 << 20)
QUOTAS_S = (0.15, 0.3)

T = TypeVar("T")

SPLITS = 8
"""So many splits of the nodes are simulated at once; of more, evenly spaced ones, then those around the best."""

LOOK_S = 0.1
"""How often a running search looks whether it shall end."""

Told = Callable[[str], None]
"""Told each result as it is found."""

Look = Callable[[], None]
"""Called every LOOK_S while simulations run; what it raises ends them all."""


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


def plan(wish: Wish, told: Told = lambda _: None, look: Look = lambda: None, processes: int | None = None) -> Plan:
    """Simulates splits of the nodes on so many processes (the machine's cores) and tunes the best one's alpha, beta and
    quota. Raises ValueError when no split holds the weights or the SLO, and what `look` raises."""
    shape = node_shape(wish.hardware)
    free = bottleneck_free(shape)
    possible = list(_possible(wish, told))
    found: dict[int, Split] = {}
    with _workers(processes) as pool:
        stride = len(possible) + 1
        while possible and stride > 1:
            rates = {nodes: split.agents_per_s for nodes, split in found.items()}
            wanted, stride = next_splits(possible, rates, stride)
            found |= _capacities(pool, wish, wanted, free, told, look)
        splits = tuple(found[nodes] for nodes in sorted(found))
        best = max(splits, key=lambda split: split.agents_per_s, default=None)
        if best is None or best.service is None:
            raise ValueError(f"no split of {wish.nodes} nodes holds the SLO with {wish.model.name}; use more nodes")
        return Plan(tuple(bounds(shape)), free, splits, best, *_tune(pool, wish, best, told, look))


@contextmanager
def _workers(processes: int | None) -> Iterator[Executor]:
    """Processes that end at once when the caller raises: their simulations take minutes."""
    others = set(active_children())
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            for worker in set(active_children()) - others:
                worker.terminate()
            raise


def next_splits(possible: Sequence[int], rates: Mapping[int, float], stride: int) -> tuple[list[int], int]:
    """Prefill nodes to simulate next, at most about SPLITS, and how far they are apart: evenly spaced within the last
    `stride` of the best so far. With 1 the search is over; it finds the best if rates rise, then fall."""
    centre = max(rates, key=lambda nodes: rates[nodes], default=possible[len(possible) // 2])
    near = [nodes for nodes in possible if abs(nodes - centre) <= stride]
    finer = -(-len(near) // SPLITS)
    return [nodes for nodes in near[::finer] if nodes not in rates], finer


def _possible(wish: Wish, told: Told) -> Iterator[int]:
    """Prefill nodes of the splits whose engines hold the weights."""
    for prefill_nodes in range(1, wish.nodes):
        cluster = _cluster(wish, prefill_nodes)
        try:
            cluster.config()
        except ValueError as error:
            told(f"{cluster.name}: {error}")
        else:
            yield prefill_nodes


def _results(running: Mapping[Future[Service | None], T], look: Look) -> Iterator[tuple[T, Service | None]]:
    """Each as it is found. A signal is looked for here: a handler that raised while the pool starts would leave it
    half made, and the end would wait for ever."""
    left = set(running)
    while left:
        done, left = wait(left, LOOK_S, FIRST_COMPLETED)
        look()
        yield from ((running[each], each.result()) for each in done)


def _capacities(
    pool: Executor, wish: Wish, prefill_nodes: Sequence[int], free: BottleneckFree | None, told: Told, look: Look
) -> dict[int, Split]:
    running = {pool.submit(_capacity, wish, nodes): nodes for nodes in prefill_nodes}
    found = {}
    for nodes, service in _results(running, look):
        ratio = Fraction(nodes, wish.nodes - nodes)
        inside = free is not None and free.low <= ratio <= free.high
        found[nodes] = split = Split(nodes, wish.nodes - nodes, inside, service)
        told(f"{split.name} carries {split.agents_per_s:.3g} agents/s")
    return found


def _capacity(
    wish: Wish, prefill_nodes: int, system: System | None = None, timing: Timing = TIMING, start: float | None = None
) -> Service | None:
    cluster, start = _cluster(wish, prefill_nodes), start or 0.05 * wish.nodes
    service = capacity(
        cluster, system or wish.system, wish.workload, wish.slo, wish.seed, wish.window, timing, start=start
    )
    return without_records(service) if service else None


def _cluster(wish: Wish, prefill_nodes: int) -> Cluster:
    decode_nodes = wish.nodes - prefill_nodes
    return Cluster(wish.model, wish.hardware, prefill_nodes, decode_nodes, prefill_nodes, decode_nodes)


def _tune(pool: Executor, wish: Wish, best: Split, told: Told, look: Look) -> tuple[int, int, Quota, float]:
    """One parameter changed at a time, at the best split: what carries the most agents a second."""
    parameters, quota = wish.system.parameters, TIMING.quota
    found = (parameters.alpha_tokens, parameters.beta_tokens, quota)
    running, carried = {}, {found: best.agents_per_s}
    for alpha, beta, attention_s in _candidates(*found):
        tuned = (alpha, beta, Quota(attention_s, quota.tokens))
        system, timing = wish.system.tuned(alpha, beta), Timing(quota=tuned[2])
        running[pool.submit(_capacity, wish, best.prefill_nodes, system, timing, best.agents_per_s)] = tuned
    for tuned, service in _results(running, look):
        carried[tuned] = service.agents_per_s if service else 0.0
        words = f"alpha {tuned[0]}, beta {tuned[1]}, quota {tuned[2].attention_s} s"
        told(f"{best.name} carries {carried[tuned]:.3g} agents/s with {words}")
    most = max([found, *running.values()], key=lambda tuned: carried[tuned])  # of equals the first
    return *most, carried[most]


def _candidates(alpha: int, beta: int, quota: Quota) -> Iterator[tuple[int, int, float]]:
    yield from ((other, beta, quota.attention_s) for other in ALPHAS if other != alpha)
    yield from ((alpha, other, quota.attention_s) for other in BETAS if other != beta)
    yield from ((alpha, beta, other) for other in QUOTAS_S if other != quota.attention_s)
