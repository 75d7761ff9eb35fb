"""Submission and reader here, the scheduler in a process of its own, nothing between them but the ring."""

import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hostless.v1 import engine_pb2
from services.fabric.errors import StaleRegion
from services.fabric.region import MemoryRegion
from services.fabric.ring import Finish, RingClient
from services.fabric.transports import open_region
from services.tokenizer.attachment import share_of
from services.tokenizer.reader import TokenReader
from services.tokenizer.slots import SlotTracker
from services.tokenizer.submission import RingRequest, Submitter
from tests.tokenizer.ring import fake_scheduler
from tests.tokenizer.ring.fake_scheduler import answer

ROOT = Path(__file__).parents[3]


@contextmanager
def scheduler_process(directory: Path) -> Iterator[tuple[subprocess.Popen[str], engine_pb2.RingLease]]:
    command = [sys.executable, fake_scheduler.__file__, str(directory), "engine", "256", str(1 << 16)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, engine_pb2.RingLease.FromString(bytes.fromhex(process.stdout.readline()))
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def front_end(lease: engine_pb2.RingLease) -> tuple[Submitter, TokenReader, SlotTracker]:
    ring = RingClient(open_region(lease.ring), share_of(lease))
    tracker = SlotTracker(lease.slot_begin, ring.read_words())
    submitter = Submitter(ring, tracker)
    return submitter, TokenReader(ring, submitter.release, 512), tracker


def test_five_hundred_requests_through_thirty_two_slots(tmp_path: Path) -> None:
    rng = random.Random(3)
    asked = [
        RingRequest(
            np.array([rng.randrange(50_000) for _ in range(rng.randint(1, 100))], np.uint32),
            rng.randint(1, 120),
            seed=rng.randrange(10_000),
            tag=i,
        )
        for i in range(500)
    ]
    with scheduler_process(tmp_path) as (process, lease):
        submitter, reader, tracker = front_end(lease)
        got: dict[object, list[int]] = defaultdict(list)
        ends: dict[object, Finish] = {}
        sent = 0
        give_up = time.monotonic() + 120
        while len(ends) < len(asked):
            assert time.monotonic() < give_up
            assert process.poll() is None
            handles = submitter.submit(asked[sent : sent + 16], time.time_ns())
            reader.add(handles)
            sent += len(handles)
            poll = reader.poll()
            for news in poll.progress:
                got[news.handle.request.tag] += news.tokens.tolist()
                if news.finish is not None:
                    ends[news.handle.request.tag] = news.finish
            if not poll.progress:
                time.sleep(0.0005)
        for i, request in enumerate(asked):
            assert (got[i], ends[i]) == answer(request.prompt, request.seed, request.max_tokens)
        assert submitter.in_use == (0, 0)
        assert tracker.available == lease.slot_count == 32
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_killed_engine_leaves_a_file_that_the_next_one_takes_over(tmp_path: Path) -> None:
    with scheduler_process(tmp_path) as (process, lease):
        submitter, reader, _ = front_end(lease)
        reader.add(submitter.submit([RingRequest(np.arange(10, dtype=np.uint32), 100, seed=1)], 0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        reader.poll()
        with MemoryRegion.create("engine", 64, directory=tmp_path):
            with pytest.raises(StaleRegion):
                reader.poll()
            with pytest.raises(StaleRegion):
                submitter.submit([RingRequest(np.arange(10, dtype=np.uint32), 1)], 0)
