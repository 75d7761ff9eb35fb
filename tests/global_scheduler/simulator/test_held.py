"""Contexts that decode engines hold in the simulated cluster: against a reference, and what they do to a run."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.driver import simulate
from services.global_scheduler.simulator.held import HeldContexts
from services.global_scheduler.simulator.systems import DUALPATH, REUSE
from services.global_scheduler.simulator.workload import Workload

CAPACITY = 10

turns = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.integers(1, 12)), max_size=30)


@given(turns)
def test_as_the_reference(turns: list[tuple[str, int, int]]) -> None:
    held = HeldContexts(CAPACITY)
    right: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}  # agents and tokens, the oldest first
    for engine, agent, tokens in turns:
        held.decoded(engine, agent, tokens)
        if tokens <= CAPACITY:
            right[engine] = [one for one in right[engine] if one[0] != agent] + [(agent, tokens)]
            while sum(held for _, held in right[engine]) > CAPACITY:
                right[engine].pop(0)
        for other in range(5):
            expected = {name: dict(contexts)[other] for name, contexts in right.items() if other in dict(contexts)}
            assert dict(held.of(other)) == expected


def test_nothing_held_is_dualpath_to_the_bit(small: Cluster, work: Workload) -> None:
    without, nothing = simulate(small, DUALPATH, work), simulate(small, replace(REUSE, held_bytes=0), work)
    assert without.records.tobytes() == nothing.records.tobytes()
    assert without.ledger == nothing.ledger


def test_what_is_held_is_not_read(storage_bound: Cluster, work: Workload) -> None:
    without, some, all_of_it = (
        simulate(storage_bound, replace(REUSE, held_bytes=size), work) for size in (0, 4 * 2**30, 2**40)
    )
    reads = [outcome.ledger["read_tokens"] for outcome in (without, some, all_of_it)]
    assert reads[0] > reads[1] > reads[2]
    assert all_of_it.ledger["reused_tokens"] > all_of_it.ledger["hit_tokens"] / 2
    assert all_of_it.jct_s < without.jct_s
