"""The part `engine` of bench/kvstore.py: the engine `local` beside fio, and what its start and its write limit cost."""

import argparse
import json
import mmap
import os
import resource
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from services.common.keys import block_keys, root_key
from services.kvstore import _segments
from services.kvstore.block import Block
from services.kvstore.engines import Read, Write
from services.kvstore.engines.local import LocalEngine, LocalOptions

SIZES = {"4 MB": (4 << 20, 8), "256 KB": (256 << 10, 32)}
"""Bytes of a block, and transfers under way."""
WRITERS, READERS = 4, 2
"""Threads that share the depth: one's blocks move while another's are synced, or handed out."""
BATCH = 4
"""Blocks of a call, in depths; also between two syncs."""
SEGMENT = 8 << 30


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    if shutil.which("fio") is None:
        raise SystemExit("fio is not installed: apt-get install fio")
    results: dict[str, Any] = {"fio": run("fio", "--version").strip(), "bytes": options.bytes, "throughput": {}}
    for name, (length, depth) in SIZES.items():
        results["throughput"][name] = Against(folder, length, depth, options.bytes, options.repeats).measure(name)
    results["checksum_gb_s"] = checksum_speed()
    print(f"crc32c, one core: {results['checksum_gb_s']} GB/s")
    results["start"] = starts(folder, options.bytes)
    results["latency"] = latency_beside_writes(folder)
    return results


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def chain(count: int, length: int, seed: int = 0) -> list[Block]:
    tokens = np.random.default_rng(seed).integers(0, 50_000, 64 * count).astype("<u4")
    parent, blocks = root_key("bench", ""), []
    for position, key in enumerate(block_keys(parent, tokens)):
        blocks.append(Block(key, parent, position, length, tokens[64 * position : 64 * position + 64].tobytes()))
        parent = key
    return blocks


@contextmanager
def memory(engine: LocalEngine, length: int, count: int) -> Any:
    """`count` buffers of a block each, registered, full of bytes that don't compress."""
    with mmap.mmap(-1, length * count) as mapping:
        view = memoryview(mapping)
        view[:] = np.random.default_rng(1).bytes(len(view))
        engine.register(view)
        parts = [view[at * length : (at + 1) * length] for at in range(count)]
        try:
            yield parts
        finally:
            engine.unregister(view)
            for part in parts:
                part.release()
            view.release()


class Clock:
    """Seconds and CPU seconds of what runs inside."""

    def __enter__(self) -> "Clock":
        self._wall, self._cpu = time.perf_counter(), self._used()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self._wall, self._used() - self._cpu

    @staticmethod
    def _used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime


class Against:
    """Engine and fio in turns on one file system. Both read the same file: a segment."""

    def __init__(self, folder: Path, length: int, depth: int, size: int, repeats: int) -> None:
        self.folder, self.length, self.depth, self.repeats = folder, length, depth, repeats
        self.blocks = chain(size // length, length, seed=length)
        self.size = len(self.blocks) * length

    def measure(self, name: str) -> dict[str, Any]:
        """A ratio is the median of the rounds' own: a disk that others use is another from minute to minute. Who
        begins changes from round to round."""
        writes = [
            ("write fio", lambda: self.fio_write(synced=False)),
            ("write", self.write),
            ("write fio synced", lambda: self.fio_write(synced=True)),
        ]
        reads = [("read fio", self.fio_read), ("read", self.read)]
        rows: dict[str, list[tuple[float, float]]] = {}
        for number in range(self.repeats):
            for steps in (writes, reads):
                for what, step in steps if number % 2 else reversed(steps):
                    rows.setdefault(what, []).append(step())
            shutil.rmtree(self.folder / "store")
        table: dict[str, Any] = {what: summary(row) for what, row in rows.items()}
        for verb, base in (("read", "read fio"), ("write", "write fio"), ("write", "write fio synced")):
            ratios = [ours / its for (ours, _), (its, _) in zip(rows[verb], rows[base], strict=True)]
            table[f"{verb} / {base}"] = {
                "median": round(statistics.median(ratios), 2),
                "least": round(min(ratios), 2),
                "most": round(max(ratios), 2),
            }
        show(name, self.depth, table)
        return {"depth": self.depth, **table}

    def engine(self, depth: int) -> LocalEngine:
        engine = LocalEngine(
            [self.folder / "store"], LocalOptions(queue_depth=depth, segment_bytes=SEGMENT, lanes=WRITERS)
        )
        engine.scan()
        return engine

    def write(self) -> tuple[float, float]:
        """Durable when it ends; a sync a batch, as fio's."""

        def put(engine: LocalEngine, blocks: list[Block], parts: list[memoryview], sums: list[int]) -> None:
            writes = [Write(*one) for one in zip(blocks, parts, sums, strict=False)]
            assert engine.put(writes) == [None] * len(blocks)

        return self._timed(put, WRITERS)

    def read(self) -> tuple[float, float]:
        def load(engine: LocalEngine, blocks: list[Block], parts: list[memoryview], _: list[int]) -> None:
            reads = [Read(block.key, block.length, 0, part) for block, part in zip(blocks, parts, strict=False)]
            assert engine.load(reads) == [None] * len(blocks)

        return self._timed(load, READERS)

    def _timed(
        self, step: Callable[[LocalEngine, list[Block], list[memoryview], list[int]], None], callers: int
    ) -> tuple[float, float]:
        """All blocks in batches, by a few callers that share the depth."""
        engine, batch = self.engine(self.depth // callers), BATCH * self.depth
        batches = iter([self.blocks[at : at + batch] for at in range(0, len(self.blocks), batch)])
        with memory(engine, self.length, callers * batch) as parts:
            sums = [_segments.crc32c(part) for part in parts]  # the writer's work, not the store's

            def work(caller: int) -> None:
                mine = slice(caller * batch, (caller + 1) * batch)
                for blocks in batches:
                    step(engine, blocks, parts[mine], sums[mine])

            with Clock() as clock:
                in_threads(callers, work)
        engine.close()
        return self.size / clock.wall / 1e9, clock.cpu / self.size * 1e9

    def fio_read(self) -> tuple[float, float]:
        """Of all segments, as far as the shortest: of a file that is too short, fio would write the rest."""
        segments = sorted((self.folder / "store").rglob("*.seg"))
        size = min(path.stat().st_size for path in segments) // self.length * self.length
        sizes = (f"--filesize={size}", f"--size={size * len(segments)}", "--file_service_type=sequential")
        return self._fio("read", ":".join(map(str, segments)), *sizes, "--readonly", "--allow_file_create=0")

    def fio_write(self, synced: bool) -> tuple[float, float]:
        path = self.folder / "fio"
        sync = [f"--fdatasync={BATCH * self.depth}", "--end_fsync=1"] if synced else []
        result = self._fio("write", str(path), f"--size={self.size}", "--fallocate=native", *sync)
        path.unlink()
        return result

    def _fio(self, verb: str, path: str, *more: str) -> tuple[float, float]:
        fixed = ("--name=bench", "--direct=1", "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1")
        where = (f"--filename={path}", f"--bs={self.length}", f"--iodepth={self.depth}", f"--rw={verb}")
        job = json.loads(run("fio", *fixed, *where, *more, "--output-format=json"))["jobs"][0]
        seconds, done = job["job_runtime"] / 1000, job[verb]["io_bytes"]
        return done / seconds / 1e9, (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / done * 1e9


def summary(row: Sequence[tuple[float, float]]) -> dict[str, Any]:
    speeds, cpus = zip(*row, strict=True)
    return {
        "gb_s": round(statistics.median(speeds), 3),
        "least": round(min(speeds), 3),
        "most": round(max(speeds), 3),
        "cpu_s_per_gb": round(statistics.median(cpus), 3),
    }


def show(name: str, depth: int, table: dict[str, Any]) -> None:
    print(f"{name} blocks, depth {depth}: median GB/s (least to most), CPU seconds a GB")
    for what, row in table.items():
        figure, cpu = row.get("gb_s", row.get("median")), row.get("cpu_s_per_gb", "")
        print(f"  {what:<24}{figure:6.2f} ({row['least']:.2f} to {row['most']:.2f})  {cpu}")


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def checksum_speed() -> float:
    data = memoryview(np.random.default_rng(0).bytes(4 << 20))
    speeds = []
    for _ in range(50):
        with Clock() as clock:
            _segments.crc32c(data)
        speeds.append(len(data) / clock.wall / 1e9)
    return round(statistics.median(speeds), 1)


def starts(folder: Path, size: int) -> dict[str, Any]:
    """Opening a store of 256 KB blocks: after a close, by footers; after a kill, by the blocks' pages."""
    length = 256 << 10
    blocks = chain(size // length, length)
    root = folder / "starts"
    engine = LocalEngine([root])
    engine.scan()
    with memory(engine, length, 1) as (part,):
        crc = _segments.crc32c(part)
        for at in range(0, len(blocks), 64):
            assert engine.put([Write(block, part, crc) for block in blocks[at : at + 64]]) == [None] * 64
    engine.close()
    times: dict[str, float] = {"blocks": len(blocks)}
    for what in ("by_footers_s", "by_pages_s"):
        if what == "by_pages_s":
            for path in root.rglob("*.seg"):
                os.truncate(path, path.stat().st_size - _segments.PAGE)
        engine = LocalEngine([root])
        with Clock() as clock:
            assert len(engine.scan().blocks) == len(blocks)
        times[what] = round(clock.wall, 3)
        times["index_bytes_a_block"] = round(engine.index_bytes / len(blocks), 1)
        engine.close()
    shutil.rmtree(root)
    print(
        f"start with {times['blocks']} blocks: {times['by_footers_s']} s by footers, {times['by_pages_s']} s by pages"
    )
    return times


def latency_beside_writes(folder: Path) -> dict[str, Any]:
    """Reads of one 4 MB block at a time, alone and while another writes as fast as it may."""
    results = {}
    for what, limit in (("alone", None), ("beside unlimited writes", 0), ("beside 200 MB/s of writes", 200_000_000)):
        times = _latency(folder / "latency", limit)
        p50, p99 = np.percentile(times, [50, 99])
        results[what] = {"p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2)}
        print(f"a read of 4 MB {what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    return results


def _latency(root: Path, write_limit: int | None) -> list[float]:
    """Milliseconds of each read. None: nobody writes; 0: without a limit."""
    length, times = 4 << 20, []
    blocks, others = chain(16, length), chain(64, length, seed=1)
    engine = LocalEngine([root], LocalOptions(write_limit_bytes_s=write_limit or 0))
    engine.scan()
    with memory(engine, length, 2) as (source, target):
        crc = _segments.crc32c(source)

        def put(some: Sequence[Block]) -> list[Exception | None]:
            return engine.put([Write(block, source, crc) for block in some])

        assert put(blocks) == [None] * 16
        stop = threading.Event()

        def write() -> None:
            while True:
                for at in range(0, 64, 8):
                    if stop.is_set():
                        return
                    put(others[at : at + 8])
                engine.remove([block.key for block in others])

        writer = threading.Thread(target=write if write_limit is not None else lambda: None)
        writer.start()
        for at in range(200):
            block = blocks[at % 16]
            with Clock() as clock:
                assert engine.load([Read(block.key, length, 0, target)]) == [None]
            times.append(clock.wall * 1000)
        stop.set()
        writer.join()
    engine.close()
    shutil.rmtree(root)
    return times
