"""The event core against the slow reference on random small clusters: the same turns at the same times."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from services.global_scheduler._simulator import Config, Simulation, Trace
from tests.global_scheduler.simulator.reference import START_S, Reference, Turn

SEEDS = st.integers(0, 2**32 - 1)


def config(rng: np.random.Generator) -> Config:
    c = Config()
    c.prefill_nodes, c.decode_nodes = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    c.engines_per_node = int(rng.integers(1, 4))
    c.prefill_group = c.engines_per_node * int(rng.integers(1, 3))
    c.decode_group = c.engines_per_node
    c.storage_read, c.storage_write, c.dram, c.compute_nic = (float(x) for x in rng.uniform(500, 5000, 4))
    c.reads_in_flight, c.loads_in_flight = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    c.block_tokens, c.layers, c.kv_bytes = 4, 8, 10.0
    c.prefill_kv_tokens, c.decode_kv_tokens = 200, int(rng.integers(130, 400))
    c.layerwise, c.free_io = bool(rng.integers(2)), rng.random() < 0.15
    p, d = c.prefill, c.decode
    p.step_s, p.weight_s, p.group_token_s, p.engine_token_s = 0.1, 0.05, 0.011, 0.007
    p.pair_s, p.selected_s, p.selected = 1e-4, 2e-4, 20
    d.step_s, d.weight_s, d.group_token_s, d.engine_token_s = 0.03, 0.02, 0.013, 0.001
    d.context_s, d.selected_s, d.selected = 1e-5, 2e-5, 20
    return c


def trajectories(rng: np.random.Generator) -> list[list[tuple[int, int, int]]]:
    agents = []
    for _ in range(int(rng.integers(1, 6))):
        turns, context = [], 0
        for _ in range(int(rng.integers(1, 5))):
            prompt = context + int(rng.integers(1, 20))
            output = int(rng.integers(1, 9))
            turns.append((prompt, max(0, context - 1) // 4 * 4, output))
            context = prompt + output
        agents.append(turns)
    return agents


def choose(cached: list[int], wanted: list[int]) -> list[int]:
    """At most twelve tokens a step."""
    taken, left = [], 12
    for want in wanted:
        taken.append(min(want, left))
        left -= taken[-1]
        if not left:
            break
    return taken


class Placements:
    """The same placement for a turn whoever asks."""

    def __init__(self, c: Config, seed: int) -> None:
        self.c, self.seed = c, seed

    def __call__(self, agent: int, prompt: int, cached: int) -> tuple[int, int, int, int, int]:
        rng = np.random.default_rng([self.seed, agent, prompt])
        split = self.c.prefill_nodes * self.c.engines_per_node
        end = split + self.c.decode_nodes * self.c.engines_per_node
        near = int(rng.choice([0, cached, cached // 8 * 4]))
        held = [int(rng.choice([0, part, part // 8 * 4])) for part in (near, cached - near)]
        return int(rng.integers(split)), int(rng.integers(split, end)), near, *held


def fast(c: Config, agents: list[list[tuple[int, int, int]]], placements: Placements) -> dict[tuple[int, int], float]:
    """(agent, prompt) -> when its turn finished."""
    begin = np.cumsum([0, *map(len, agents)]).astype(np.int32)
    prompt, cached, output = np.array([turn for turns in agents for turn in turns], np.int32).T.copy()
    core = Simulation(c, Trace(begin, prompt, cached, output, np.zeros(len(prompt))), choose)
    for agent in range(len(agents)):
        core.add_agent(START_S * agent, agent)
    while core.unfinished:
        core.advance(core.next())
        for request, agent, tokens, hit, _ in core.take_arrivals():
            core.place(request, *placements(agent, tokens, hit))
    core.advance(float("inf"))
    kinds = [("agent", "u4"), ("turn", "u4"), *((f"t{i}", "f4") for i in range(6)), ("finished", "f4")]
    records = np.frombuffer(core.records(), np.dtype(kinds))
    ledger = core.ledger()
    assert ledger["flows_left"] == 0
    assert ledger["load_left"] == (0, 0, 0)
    assert ledger["bytes_started"] == ledger["bytes_moved"]
    return {(int(r["agent"]), int(prompt[r["turn"]])): float(r["finished"]) for r in records}


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_same_turns_at_the_same_times(seed: int) -> None:
    rng = np.random.default_rng(seed)
    c = config(rng)
    agents, placements = trajectories(rng), Placements(c, seed)

    def place(turn: Turn) -> None:
        placed = placements(turn.agent, turn.prompt, turn.cached)
        turn.prefill, turn.decode, turn.near, turn.near_held, turn.far_held = placed

    reference = Reference(c, choose, place)
    slow = {(t.agent, t.prompt): t.times["finished"] for t in reference.run(agents)}
    assume(not reference.tied)
    assert fast(c, agents, placements) == pytest.approx(slow, rel=1e-5)
