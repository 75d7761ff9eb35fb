"""Whole runs with the live policies: repeatable, balanced, and moving the right way when something changes."""

from dataclasses import fields, replace
from itertools import pairwise

import pytest

from services.global_scheduler._simulator import Simulation
from services.global_scheduler.policy.chunk import Quota
from services.global_scheduler.simulator.chunks import chunk_chooser
from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.driver import TIMING, Timing, simulate
from services.global_scheduler.simulator.hardware import Efficiency, Hardware
from services.global_scheduler.simulator.outcome import ConservationError, check
from services.global_scheduler.simulator.systems import SYSTEMS, System
from services.global_scheduler.simulator.workload import Workload

NOISE = 0.02


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=list(SYSTEMS))
def test_every_system_finishes_and_balances(small: Cluster, work: Workload, system: System) -> None:
    outcome = simulate(small, system, work)  # raises if anything is lost
    assert outcome.turns == work.turns
    assert (outcome.values("ttft") > 0).all()


def test_same_seed_same_result_to_the_bit(small: Cluster, work: Workload) -> None:
    first, second = (simulate(small, SYSTEMS["dualpath"], work) for _ in range(2))
    assert first.records.tobytes() == second.records.tobytes()
    assert first.ledger == second.ledger


def test_conservation_names_what_is_missing(small: Cluster, work: Workload) -> None:
    ledger = simulate(small, SYSTEMS["dualpath"], work).ledger
    with pytest.raises(ConservationError, match="generated tokens"):
        check(small, {**ledger, "generated_tokens": ledger["generated_tokens"] - 1})
    with pytest.raises(ConservationError, match="blocks"):
        check(small, {**ledger, "blocks_stored": ledger["blocks_stored"] + 1})


@pytest.mark.parametrize("system", ["basic", "dualpath", "split"])
def test_more_bandwidth_never_hurts(storage_bound: Cluster, work: Workload, system: str) -> None:
    jcts = []
    for factor in (1, 2, 4, 8):
        nic = storage_bound.hardware.nic_gbytes_per_s * factor
        faster = replace(storage_bound, hardware=replace(storage_bound.hardware, nic_gbytes_per_s=nic))
        jcts.append(simulate(faster, SYSTEMS[system], work).jct_s)
    assert all(after <= before * (1 + NOISE) for before, after in pairwise(jcts))
    assert jcts[-1] < 0.9 * jcts[0]


def test_twice_the_speed_is_half_the_time(small: Cluster, work: Workload) -> None:
    """Everything twice as fast; rounds and reports twice as often."""
    speeds = {f.name for f in fields(Hardware) if f.name.endswith(("per_s", "tflops"))}
    latencies = {f.name for f in fields(Efficiency) if f.name.endswith("_ms")}
    h = small.hardware
    efficiency = replace(h.efficiency, **{name: getattr(h.efficiency, name) / 2 for name in latencies})
    fast = replace(h, efficiency=efficiency, **{name: getattr(h, name) * 2 for name in speeds})
    slow_time, fast_time = (Timing(round_s=0.02 / f, report_s=0.1 / f, quota=Quota(0.3 / f, 16_384)) for f in (1, 2))
    slow = simulate(small, SYSTEMS["dualpath"], work, slow_time)
    quick = simulate(replace(small, hardware=fast), SYSTEMS["dualpath"], work, fast_time)
    assert quick.jct_s == pytest.approx(slow.jct_s / 2, rel=1e-6)


def test_an_idle_node_changes_nothing(small: Cluster, work: Workload) -> None:
    """A decode node more, to which nothing is sent: the rest of the cluster doesn't see it."""
    finished = []
    for cluster in (small, replace(small, decode_nodes=2)):
        config = cluster.config()
        core = Simulation(config, work.trace(), chunk_chooser(config.prefill, TIMING.quota))
        for agent, trajectory in enumerate(work.trajectory.tolist()):
            core.add_agent(agent * 1e-3, trajectory)
        while core.unfinished:
            core.advance(core.next())
            for request, agent, _, cached, _ in core.take_arrivals():
                core.place(request, agent % 8, 8 + agent % 8, cached if agent % 2 else 0)
        finished.append(core.agents_finished())
    assert finished[0] == finished[1]


def test_two_paths_beat_one_where_storage_is_slow(storage_bound: Cluster, work: Workload) -> None:
    jct = {name: simulate(storage_bound, SYSTEMS[name], work).jct_s for name in ("layerwise", "dualpath", "oracle")}
    assert jct["oracle"] < jct["dualpath"] < 0.75 * jct["layerwise"]


def test_open_loop_stops_when_told(small: Cluster, work: Workload) -> None:
    arriving = work.open(agents_per_s=5.0, duration_s=20.0, seed=1)
    outcome = simulate(small, SYSTEMS["dualpath"], arriving, until_s=20.0)
    assert outcome.agents == arriving.agents
    assert 0 < outcome.turns < arriving.turns
    assert outcome.simulated_s == pytest.approx(20.0, abs=0.1)
    assert 0 < outcome.agents_left <= arriving.agents


def test_hbm_that_runs_out_preempts_and_still_finishes(small: Cluster, work: Workload) -> None:
    room = small.config().decode_kv_tokens
    less = (room - 12_000) * small.model.kv_token_bytes / 1e9 / small.hardware.efficiency.hbm_capacity
    tight = replace(small, hardware=replace(small.hardware, hbm_gbytes=small.hardware.hbm_gbytes - less))
    outcome = simulate(tight, SYSTEMS["dualpath-rr"], work)
    assert outcome.ledger["preemptions"] > 0
