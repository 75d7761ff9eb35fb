"""The engine `local` and fio, at one block size and depth, in turns."""

import json
import shutil
import statistics
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.store.blocks import Clock, chain, memory
from services.kvstore import _segments
from services.kvstore.block import Block
from services.kvstore.engines import Read, Write
from services.kvstore.engines.local import LocalEngine, LocalOptions

WRITERS, READERS = 4, 2
"""Threads that share the depth: one's blocks move while another's are synced, or handed out."""
BATCH = 4
"""Blocks of a call, in depths; also between two syncs."""
SEGMENT = 8 << 30
Step = tuple[str, Callable[[], tuple[float, float]]]


class BesideFio:
    """Engine and fio in turns on one file system. Both read the same file: a segment."""

    def __init__(self, folder: Path, length: int, depth: int, size: int, repeats: int) -> None:
        self.folder, self.length, self.depth, self.repeats = folder, length, depth, repeats
        self.blocks = chain(size // length, length, seed=length)
        self.size = len(self.blocks) * length

    def measure(self, name: str) -> dict[str, Any]:
        """A ratio is the median of the rounds' own: a disk that others use is another from minute to minute. Who
        begins changes from round to round."""
        writes: list[Step] = [
            ("write fio", lambda: self.fio_write(synced=False)),
            ("write", self.write),
            ("write fio synced", lambda: self.fio_write(synced=True)),
        ]
        reads: list[Step] = [("read fio", self.fio_read), ("read", self.read)]
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


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
