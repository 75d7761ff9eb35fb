"""Workloads: published means, seeds, imports."""

import json
from pathlib import Path

import numpy as np
import pytest

from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.fidelity import replay
from services.global_scheduler.simulator.importing import TraceError, read_mooncake, read_requests
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
