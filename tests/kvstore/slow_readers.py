"""Readers slower than their leases, against a shadow model: `python -m tests.kvstore.slow_readers --rounds 10000`.

Blocks are written again with other bytes each time, under the same key, in a store with room for half of them. A read
may be held up before it touches the disk, for as long as it likes; meanwhile its lease ends and its blocks are evicted
and written anew. Whatever is then answered: bytes count only under a lease that held, and are those that it was given
for.
"""

import argparse
import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
from crc32c import crc32c
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from services.common.keys import next_key, root_key
from services.fabric.region import MemoryRegion
from services.kvstore import reading, service, writing
from services.kvstore.block import Block
from services.kvstore.engines import Read, StorageEngine
from services.kvstore.engines.files.engine import FileEngine
from services.kvstore.engines.local.engine import LocalEngine
from services.kvstore.engines.local.options import LocalOptions
from services.kvstore.reading import Slice
from services.kvstore.settings import StoreSettings
from services.kvstore.store import open_store

T = TypeVar("T")

CHAINS, DEPTH, LENGTH = 4, 6, 5000
ROOM = CHAINS * DEPTH // 2
READS = 6
SHORT_S = 1.0
TIMED = (reading, writing, service)
STEPS = 50


def blocks_of(chain: int) -> list[Block]:
    parent, blocks = root_key("slow", str(chain)), []
    tokens = np.random.default_rng(chain).integers(0, 50_000, (DEPTH, 64)).astype("<u4")
    for position in range(DEPTH):
        key = next_key(parent, tokens[position])
        blocks.append(Block(key, parent, position, LENGTH, tokens[position].tobytes()))
        parent = key
    return blocks


def payload(block: Block, version: int) -> bytes:
    return np.random.default_rng([version, *block.key]).bytes(LENGTH)


class Clock:
    """In place of `time` in what is tested: only `pass_time` makes it go on, so that a run can be repeated."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Gate:
    """Wraps an engine's load: it waits for `open` where told to."""

    def __init__(self, engine: StorageEngine) -> None:
        self._load, self.hold = engine.load, False
        self.waiting: list[threading.Event] = []

    def load(self, reads: Sequence[Read]) -> list[Exception | None]:
        if self.hold:
            event = threading.Event()
            self.waiting.append(event)
            assert event.wait(60), "a held read was forgotten"
        return self._load(reads)

    def open(self) -> None:
        while self.waiting:
            self.waiting.pop().set()


@dataclass
class Leased:
    lease_id: int
    ends: float
    blocks: list[Block]
    versions: list[int]
    released: bool = False


@dataclass
class Reading:
    lease: Leased
    first: int
    count: int
    place: int
    task: "asyncio.Task[tuple[int, str]]" = field(repr=False)


class SlowReaders(RuleBasedStateMachine):
    rounds = 0
    engine_of: Callable[[Path], StorageEngine] = staticmethod(FileEngine)  # type: ignore[assignment]

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hostless-slow-", dir="/dev/shm"))
        os.environ["HOSTLESS_SHM"] = str(self.folder)
        self.loop, self.stack, self.clock = asyncio.new_event_loop(), AsyncExitStack(), Clock()
        for module in TIMED:
            self.stack.enter_context(patch.object(module, "time", self.clock))
        engine = self.engine_of(self.folder / "store")
        self.gate = Gate(engine)
        engine.load = self.gate.load  # type: ignore[method-assign]
        options = StoreSettings(
            path=str(self.folder / "store"),
            capacity_bytes=ROOM * engine.footprint(LENGTH),
            write_buffer_bytes=1 << 20,
            read_threads=READS,
            high_watermark=1.0,
            low_watermark=1.0,
        )
        self.store = self.do(self.stack.enter_async_context(open_store(options, engine)))
        self.region = self.stack.enter_context(MemoryRegion.create("reader", READS * DEPTH * LENGTH))
        self.chains = [blocks_of(chain) for chain in range(CHAINS)]
        self.version = 0
        self.stored: dict[bytes, int] = {}  # the version last committed of each key, evicted or not
        self.leases: list[Leased] = []
        self.reads: list[Reading] = []
        self.free = list(range(READS))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @rule(chain=st.integers(0, CHAINS - 1), count=st.integers(1, DEPTH))
    def put(self, chain: int, count: int) -> None:
        self.version += 1
        writer, blocks = self.store._writer, self.chains[chain][:count]
        places = writer.begin(blocks)
        commits, written = [], []
        for block, place in zip(blocks, places, strict=True):
            if place.ticket_id:
                data = payload(block, self.version)
                writer._memory[place.offset : place.offset + LENGTH] = data
                commits.append((place.ticket_id, crc32c(data)))
                written.append(block)
            else:
                assert place.reason in ("exists", "no parent"), place.reason
        for block, reason in zip(written, self.do(writer.commit(commits)), strict=True):
            assert reason in ("", "no parent") or reason.startswith("full"), reason
            if not reason:
                self.stored[block.key] = self.version

    @rule(chain=st.integers(0, CHAINS - 1), count=st.integers(1, DEPTH), short=st.booleans())
    def lease(self, chain: int, count: int, short: bool) -> None:
        blocks, ttl_s = self.chains[chain][:count], SHORT_S if short else 30.0
        ends = self.clock.now + ttl_s
        found = self.do(self.store._reader.lookup(b"".join(block.key for block in blocks), ttl_s))
        assert all(block.key in self.stored for block in blocks[: found.hit]), "a block was found that was never stored"
        if found.hit:
            versions = [self.stored[block.key] for block in blocks[: found.hit]]
            self.leases.append(Leased(found.lease_id, ends, blocks[: found.hit], versions))

    @precondition(lambda self: self.leases and self.free)
    @rule(data=st.data(), slow=st.booleans())
    def read(self, data: st.DataObject, slow: bool) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        first = data.draw(st.integers(0, len(lease.blocks) - 1))
        count = data.draw(st.integers(1, len(lease.blocks) - first))
        place = self.free.pop()
        self.gate.hold = slow
        part = Slice(place * DEPTH * LENGTH)
        work = self.store._reader.read(lease.lease_id, first, count, LENGTH, self.region.descriptor(), part)
        started = Reading(lease, first, count, place, self.loop.create_task(work))
        self.reads.append(started)
        waiting = len(self.gate.waiting)
        while not started.task.done() and len(self.gate.waiting) == waiting:
            self.do(asyncio.sleep(0))
        self.gate.hold = False
        if not slow:
            self.finish_one(started)

    @precondition(lambda self: self.reads)
    @rule()
    def finish(self) -> None:
        self.gate.open()
        for started in list(self.reads):
            self.finish_one(started)

    @rule()
    def pass_time(self) -> None:
        self.clock.now += 2 * SHORT_S
        self.store.free_abandoned()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self.store._reader.release(lease.lease_id)
        lease.released = True
        self.leases.remove(lease)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "store"):
            type(self).rounds += 1
            self.store._disk.index.check()
            assert self.store._disk.index.used <= self.store._disk.index.capacity

    def finish_one(self, started: Reading) -> None:
        blocks, _ = self.do(started.task)
        self.reads.remove(started)
        self.free.append(started.place)
        lease = started.lease
        assert self.store._disk.counters.blocks_corrupt == 0, "a block was taken for broken that had been evicted"
        held = self.clock.now < lease.ends and not lease.released
        assert blocks == 0 or held, "bytes after the lease had ended"
        assert blocks == started.count or not held, "a lease that held gave less"
        for at in range(blocks):
            begin = (started.place * DEPTH + at) * LENGTH
            block, version = lease.blocks[started.first + at], lease.versions[started.first + at]
            assert self.region.view[begin : begin + LENGTH].tobytes() == payload(block, version), (
                "bytes of another time"
            )

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.gate.open()
        for started in list(self.reads):
            self.finish_one(started)
        self.do(self.stack.aclose())
        self.loop.close()
        shutil.rmtree(self.folder)


def run(rounds: int, machine: type[SlowReaders] = SlowReaders) -> int:
    """At least so many steps of the machine; returns how many. Raises AssertionError with the steps that led to it."""
    machine.rounds = 0
    while machine.rounds < rounds:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            machine,
            settings=settings(
                max_examples=max(1, (rounds - machine.rounds) // STEPS),
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    return machine.rounds


class SlowLocalReaders(SlowReaders):
    engine_of = staticmethod(lambda folder: LocalEngine([folder], LocalOptions()))


ENGINES = {"files": SlowReaders, "local": SlowLocalReaders}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--engine", default="files", choices=ENGINES)
    options = parser.parse_args()
    begun = time.monotonic()
    rounds = run(options.rounds, ENGINES[options.engine])
    print(f"{rounds} rounds, no wrong byte, {time.monotonic() - begun:.0f} s")
