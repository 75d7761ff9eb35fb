"""Small clusters and workloads that run in a second."""

from dataclasses import replace

import pytest

from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.hardware import load_hardware
from services.global_scheduler.simulator.shapes import load_model
from services.global_scheduler.simulator.workload import Statistics, Workload, generate

SHORT = Statistics(8_192, turns=8, context=4_000, append=420, output=40, total=6_800)


@pytest.fixture(scope="session")
def small() -> Cluster:
    return Cluster(load_model("ds-27b"), load_hardware(), 1, 1)


@pytest.fixture(scope="session")
def work() -> Workload:
    return generate(SHORT, seed=3, trajectories=40).closed(120)


@pytest.fixture(scope="session")
def storage_bound(small: Cluster) -> Cluster:
    """Ten times slower storage: what DualPath is for."""
    hardware = replace(small.hardware, nic_gbytes_per_s=small.hardware.nic_gbytes_per_s / 10)
    return replace(small, hardware=hardware)
