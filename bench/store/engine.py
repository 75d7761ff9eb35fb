"""The part `engine` of bench/kvstore.py: the engine `local` beside fio, and what its start and its write limit cost."""

import argparse
import os
import shutil
import statistics
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.store.beside_fio import BesideFio, run
from bench.store.blocks import Clock, chain, memory
from services.kvstore import _segments
from services.kvstore.block import Block
from services.kvstore.engines import Read, Write
from services.kvstore.engines.local import LocalEngine, LocalOptions

SIZES = {"4 MB": (4 << 20, 8), "256 KB": (256 << 10, 32)}
"""Bytes of a block, and transfers under way."""


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    if shutil.which("fio") is None:
        raise SystemExit("fio is not installed: apt-get install fio")
    results: dict[str, Any] = {"fio": run("fio", "--version").strip(), "bytes": options.bytes, "throughput": {}}
    for name, (length, depth) in SIZES.items():
        results["throughput"][name] = BesideFio(folder, length, depth, options.bytes, options.repeats).measure(name)
    results["checksum_gb_s"] = checksum_speed()
    print(f"crc32c, one core: {results['checksum_gb_s']} GB/s")
    results["start"] = starts(folder, options.bytes)
    results["latency"] = latency_beside_writes(folder)
    return results


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
