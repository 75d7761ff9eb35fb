"""The clusters and workloads of the paper's evaluation, as the simulator has them (docs/simulator.md)."""

from functools import cache

from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.driver import simulate
from services.global_scheduler.simulator.hardware import load_hardware
from services.global_scheduler.simulator.outcome import Outcome
from services.global_scheduler.simulator.shapes import load_model
from services.global_scheduler.simulator.systems import SYSTEMS
from services.global_scheduler.simulator.workload import PUBLISHED, Workload, generate

SEED = 0
HOME = {"ds-660b": (2, 4), "ds-27b": (1, 1), "qwen2.5-32b": (1, 2)}
"""Prefill and decode nodes of each model."""


def cluster(model: str, prefill: int = 0, decode: int = 0) -> Cluster:
    """Experts spread over as many nodes as the model's home cluster has; more nodes are more such groups."""
    home_prefill, home_decode = HOME[model]
    prefill, decode = prefill or home_prefill, decode or home_decode
    groups = min(prefill, home_prefill), min(decode, home_decode)
    return Cluster(load_model(model), load_hardware(), prefill, decode, *groups)


@cache
def trajectories(length: str, append: float = 1.0) -> Workload:
    return generate(PUBLISHED[length].scaled(append=append), SEED)


def offline(where: Cluster, system: str, length: str, agents: int, append: float = 1.0) -> Outcome:
    return simulate(where, SYSTEMS[system], trajectories(length, append).closed(agents))
