"""The whole core on a real GPU: every token of every request, through a front end's process, compared."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings", reason="NOT RUN: CUDA's Python bindings are missing: pip install 'hostless[cuda]'")

from services.fabric._ring import EngineState, LeaseState
from services.gpu_backend._device import Ending
from services.gpu_backend.device.ring_memory import DeviceRing
from services.gpu_backend.device.settings import DeviceSettings
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu.scheduler.builds import BUILDS, scheduler_of
from tests.gpu.scheduler.rig import MOST_PROMPT, MOST_TOKENS, ROOT, Rig, SilentEngine, summary_of

pytestmark = pytest.mark.gpu

TIGHT = SchedulerSettings(lanes=12, step_tokens=256, pages=18, prefill_chunk=48, order_capacity=64)
ROOMY = SchedulerSettings(lanes=32, step_tokens=512, pages=256)
MIXED = replace(TIGHT, mixed_tokens=40, attention_quota_s=2e-3, attention_time=(1e-6, 1e-6, 1e-7))


@pytest.mark.parametrize("settings", [TIGHT, ROOMY, MIXED], ids=["tight", "roomy", "mixed"])
def test_every_token_is_right_under_evictions_chunks_cancels_and_relaunches(
    device: Any, settings: SchedulerSettings
) -> None:
    with Rig(device, settings) as rig:
        processes = [
            rig.front_end(0, requests=700, cancel_one_in=4000),
            rig.front_end(1, requests=700, cancel_one_in=4000, spoil_one_in=10),
        ]
        summaries = [summary_of(process) for process in processes]
        for place, summary in enumerate(summaries):
            assert summary["wrong"] == []
            assert summary["requests"] == 700, place
        assert summaries[1]["finishes"]["BAD_RECORD"] > 10
        n = rig.scheduler.counters()
        print(json.dumps({"counters": n, "summaries": summaries}))
        assert n["illegal_transitions"] == 0
        assert rig.scheduler.launch_errors == 0
        assert n["relaunches"] > 10
        if settings is MIXED:
            assert n["mixed_launches"] > 100
            assert n["pauses"] == 0
        if settings is not ROOMY:
            assert n["preemptions"] > 0, "no eviction was seen: the test has lost its point"
            assert summaries[0]["chunks"] > 1000
        rig.until(lambda: rig.scheduler.counters()["free_pages"] == settings.pages)


@pytest.mark.parametrize("settings", [TIGHT, ROOMY], ids=["tight", "roomy"])
def test_the_ring_may_lie_in_the_gpus_memory(device: Any, settings: SchedulerSettings) -> None:
    with Rig(device, settings, make_ring=DeviceRing) as rig:
        processes = [
            rig.front_end(0, requests=150, cancel_one_in=1000),
            rig.front_end(1, requests=150, spoil_one_in=10),
        ]
        for process in processes:
            summary = summary_of(process)
            assert summary["wrong"] == []
            assert summary["requests"] == 150
        assert rig.scheduler.counters()["illegal_transitions"] == 0
        rig.ring.end(0)
        rig.until(lambda: rig.ring.lease_state(0) == LeaseState.FREE)
        rig.until(lambda: rig.scheduler.counters()["free_pages"] == settings.pages)


def test_garbage_in_one_share_costs_nobody_else(device: Any) -> None:
    with Rig(device, ROOMY) as rig:
        spoiler = rig.front_end(1, garbage=4.0)
        honest = rig.front_end(0, requests=600)
        summary = summary_of(honest)
        assert summary_of(spoiler)["requests"] > 1000
        assert summary["wrong"] == []
        rig.ring.end(1)
        rig.until(lambda: rig.ring.lease_state(1) == LeaseState.FREE)
        rig.ring.end(0)
        rig.until(lambda: rig.ring.lease_state(0) == LeaseState.FREE)
        assert rig.ring.slot_states()[0] == rig.ring.geometry.slots, "a slot of an ended lease is not empty"
        rig.until(lambda: rig.scheduler.counters()["free_pages"] == ROOMY.pages)


def test_a_lease_that_ends_frees_what_it_ran(device: Any) -> None:
    with Rig(device, ROOMY) as rig:
        process = rig.front_end(0, requests=100_000)
        rig.until(lambda: rig.scheduler.counters()["running"] > 0)
        process.kill()
        process.wait()
        rig.ring.end(0)
        rig.until(lambda: rig.ring.lease_state(0) == LeaseState.FREE)
        rig.until(lambda: rig.scheduler.unfinished == 0)


def test_drain_ends_what_was_claimed_and_refuses_the_rest(device: Any) -> None:
    with Rig(device, ROOMY) as rig:
        process = rig.front_end(0, requests=100_000)
        rig.until(lambda: rig.scheduler.counters()["running"] > 0)
        rig.scheduler.drain()
        rig.until(lambda: rig.state == EngineState.DRAINING)
        rig.until(lambda: rig.scheduler.counters()["refused"] > 0)
        process.kill()
        process.wait()
        rig.until(lambda: rig.scheduler.unfinished == 0)


def test_a_deadline_ends_it_and_its_requests(device: Any) -> None:
    with Rig(device, ROOMY, own=DeviceSettings(deadline_s=1.5)) as rig:
        process = rig.front_end(0, requests=100_000)
        rig.lose(Ending.DEADLINE)
        process.kill()
        process.wait()
        assert rig.state == EngineState.STOPPED
        assert rig.scheduler.unfinished == 0


def test_it_ends_when_its_host_falls_silent_if_asked_to(device: Any) -> None:
    with Rig(device, ROOMY, own=DeviceSettings(deadline_s=30, host_patience_s=0.3)) as rig:
        for _ in range(30):
            rig.scheduler.beat()
            time.sleep(0.02)
        assert rig.scheduler.ending == Ending.RUNS
        rig.lose(Ending.ORPHANED)


def test_a_step_that_never_ends_fails_the_engine_and_not_the_gpu(device: Any) -> None:
    settings = SchedulerSettings(lanes=8, step_tokens=256, pages=64, watchdog_s=0.2)
    with Rig(device, settings, engine=SilentEngine) as rig:
        process = rig.front_end(0, requests=3)
        assert summary_of(process)["finishes"] == {"ENGINE_ERROR": 3}
        assert rig.state == EngineState.FAILED


def test_a_killed_host_leaves_a_usable_gpu(device: Any) -> None:
    command = [sys.executable, "-m", "tests.gpu.scheduler.serve", "killed"]
    host = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    said = json.loads(host.stdout.readline())
    given = {**said, "seed": 1, "most_prompt": MOST_PROMPT, "most_tokens": MOST_TOKENS, "requests": 100_000}
    command = [sys.executable, "-m", "tests.gpu.scheduler.front_end", json.dumps(given)]
    client = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    with pytest.raises(subprocess.TimeoutExpired):
        client.wait(1.0)  # steps are under way
    host.kill()
    host.communicate(timeout=10)
    client.kill()
    client.wait()
    with Rig(device, ROOMY) as rig:
        summary = summary_of(rig.front_end(0, requests=50))
        assert summary["wrong"] == []
        assert summary["requests"] == 50


@pytest.mark.parametrize("name", [name for name in BUILDS if BUILDS[name]])
def test_other_builds_are_right_and_end(device: Any, tmp_path: Path, name: str) -> None:
    kind = scheduler_of(name, tmp_path)
    with Rig(device, TIGHT, scheduler=kind) as rig:
        processes = [rig.front_end(0, requests=200, cancel_one_in=4000), rig.front_end(1, requests=50, spoil_one_in=10)]
        for process in processes:
            assert summary_of(process)["wrong"] == []
        n = rig.scheduler.counters()
        assert n["illegal_transitions"] == 0
        assert n["relaunches"] > 5
    with Rig(device, ROOMY, own=DeviceSettings(deadline_s=1.0), scheduler=kind) as rig:
        process = rig.front_end(0, requests=100_000)
        rig.lose(Ending.DEADLINE)
        process.kill()
        process.wait()
