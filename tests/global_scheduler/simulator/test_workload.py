"""Workloads: published means, seeds, imports."""

import json
from pathlib import Path

import numpy as np
import pytest

from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.fidelity import LiveMesh, read_mesh, replay
from services.global_scheduler.simulator.importing import TraceError, read_measured, read_mooncake, read_requests
from services.global_scheduler.simulator.systems import SYSTEMS
from services.global_scheduler.simulator.workload import PUBLISHED, generate


@pytest.mark.parametrize("length", PUBLISHED)
def test_generated_trajectories_have_the_published_means(length: str) -> None:
    wanted, made = PUBLISHED[length], generate(PUBLISHED[length], seed=0)
    found = made.statistics()
    for name in ("turns", "context", "append", "output", "total"):
        assert found[name] == pytest.approx(getattr(wanted, name), rel=0.06), name
    assert (made.prompt + made.output).max() <= wanted.max_context
    assert (made.cached % 64 == 0).all()
    assert (made.cached < made.prompt).all()


def test_hit_rate_of_the_64k_trace() -> None:
    assert generate(PUBLISHED["64k"], seed=1).statistics()["hit_rate"] == pytest.approx(0.987, abs=0.002)


def test_a_seed_repeats() -> None:
    first, second, other = (generate(PUBLISHED["32k"], seed) for seed in (5, 5, 6))
    assert np.array_equal(first.prompt, second.prompt)
    assert not np.array_equal(first.prompt[:100], other.prompt[:100])


def test_longer_appends_keep_the_context() -> None:
    made = generate(PUBLISHED["64k"].scaled(append=2.0), seed=0).statistics()
    assert made["context"] == pytest.approx(32_721, rel=0.05)
    assert made["append"] == pytest.approx(858, rel=0.06)


def test_mooncake_hits_follow_from_shared_blocks(tmp_path: Path) -> None:
    log = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 3500, "input_length": 1600, "output_length": 7, "hash_ids": [1, 2, 9, 10]},
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    work = read_mooncake(log)
    assert work.cached.tolist() == [0, 1024]
    assert work.start_s.tolist() == [0.0, 2.5]
    assert work.output.tolist() == [5, 7]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    log = tmp_path / "trace.jsonl"
    log.write_text('{"arrived_s": 0, "prompt_tokens": 9, "output_tokens": 1}\n')
    with pytest.raises(TraceError, match=r"line 1: cached_tokens is missing"):
        read_requests(log)
    log.write_text("{\n")
    with pytest.raises(TraceError, match=r"line 1: not JSON"):
        read_requests(log)


def test_replay_compares_what_was_measured(tmp_path: Path, small: Cluster) -> None:
    log = tmp_path / "requests.jsonl"
    line = {"prompt_tokens": 4_000, "cached_tokens": 3_584, "output_tokens": 20, "tpot_s": 0.011}
    rows = [{**line, "arrived_s": i / 10} | ({"ttft_s": 0.1} if i % 2 else {}) for i in range(20)]
    log.write_text("\n".join(map(json.dumps, rows)))
    compared = {c.quantity: c for c in replay(log, small, SYSTEMS["dualpath"])}
    assert compared["TTFT median"].requests == 10
    assert compared["TPOT P95"].measured == pytest.approx(0.011)
    assert compared["TPOT P95"].error == pytest.approx(compared["TPOT P95"].predicted / 0.011 - 1)


def test_an_agents_lines_are_its_turns_in_their_order(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    line = {"cached_tokens": 0, "output_tokens": 2}
    rows = [("b", 3.0, 100), ("a", 1.0, 200), ("b", 9.0, 300), (None, 2.0, 400)]
    log.write_text(
        "\n".join(
            json.dumps({**line, "arrived_s": at, "prompt_tokens": prompt, **({"agent": agent} if agent else {})})
            for agent, at, prompt in rows
        )
    )
    work = read_requests(log)
    assert work.begin.tolist() == [0, 2, 3, 4]
    assert work.prompt.tolist() == [100, 300, 200, 400]
    assert work.start_s.tolist() == [2.0, 0.0, 1.0]
    assert read_measured(log)["arrived_s"].tolist() == [3.0, 9.0, 1.0, 2.0]


def test_a_live_mesh_is_predicted_by_its_own_numbers(tmp_path: Path) -> None:
    """One agent alone, whose times can be told by hand."""
    cost = {"step_s": 0.01, "engine_token_s": 0.001, "pair_s": 1e-12}
    mesh = LiveMesh("m", 1, 1, 1e6, 1e9, 4, 1_000.0, 100, 100, cost, {"step_s": 0.02}, 512, 1 << 20, 1 << 20, 2)
    mesh.write(tmp_path / "mesh.json")
    log = tmp_path / "requests.jsonl"
    turns = [(0, 1_000, 960, 0.0, 2.0), (0, 1_100, 1_024, 2.0, 4.0)]
    names = ("agent", "prompt_tokens", "cached_tokens", "arrived_s", "finished_s")
    rows = [{**dict(zip(names, turn, strict=True)), "output_tokens": 11, "ttft_s": 1.0} for turn in turns]
    log.write_text("\n".join(map(json.dumps, rows)))
    read = read_mesh(tmp_path / "mesh.json")
    assert read == mesh
    jct, median, _ = replay(log, read, read.tuned(SYSTEMS["basic"]), read.timing)
    reads, computes, decodes = (960 + 1_024) / 1_000, 2 * 0.01 + (40 + 76) * 0.001, 2 * 10 * 0.02
    assert (jct.quantity, jct.measured) == ("JCT", 4.0)
    assert jct.predicted == pytest.approx(reads + computes + decodes, rel=0.03)  # and a load and a hand-over each
    assert jct.predicted > reads + computes + decodes
    assert median.requests == 2


def test_no_mesh_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mesh\.json describes no mesh"):
        read_mesh(tmp_path / "mesh.json")
