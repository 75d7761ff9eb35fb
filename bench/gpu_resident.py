"""The scheduler on the GPU against the host-driven loop: same policy, same graphs, same ring, one H200.

    python -m bench.gpu_resident OUT.json [--layers 32] [--repeats 3] [--spare 1]

For each of the two forms an engine's process of its own (gpu_resident_engine.py) serves a ring in shared memory;
this process is the front end. Steps are timed on the GPU: the last kernel of every graph notes its clock.
Hogs (2 x cores, half bz2, half memory copies, on all cores) run while a second round is measured.
Every wait has a deadline, and so has the scheduler on the GPU.
"""

import argparse
import json
import os
import platform
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bench.hogs import Hogs
from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric import _ring
from services.fabric._ring import EngineState, Finish, RecordFlags, SlotState
from services.fabric.ring import RingClient
from services.fabric.ring.layout import RECORD, Share, unpack
from services.fabric.transports import open_region

ROOT = Path(__file__).parents[1]
FORMS = ("resident", "host")
MIXES = ((16, 512, 32), (16, 512, 128))
_START_S, _RUN_S, _END_S = 120.0, 60.0, 40.0
_LOOK_S = 200e-6


@dataclass
class Ran:
    """A burst of requests. Times in seconds; those of reports are the scheduler's own."""

    tokens: list[list[int]]
    client_s: float
    scheduler_s: float
    first: NDArray[Any]
    steps: tuple[int, int]
    cpu_s: float


class Engine:
    """An engine's process and this process's share of its ring."""

    def __init__(self, form: str, folder: Path, *, layers: int, deadline_s: float, **others: Any) -> None:
        self.form, self._stamps = form, folder / f"{form}.npy"
        wanted = {
            "form": form, "layers": layers, "small": False, "stamps": str(self._stamps),
            "name": "gpu-resident", "deadline_s": deadline_s, **others,
        }  # fmt: skip
        command = [sys.executable, "-m", "bench.gpu_resident_engine", json.dumps(wanted)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        try:
            self.started = self._answer(_START_S)
            descriptor = RegionDescriptor.FromString(bytes.fromhex(self.started["descriptor"]))
            self._client = RingClient(open_region(descriptor), Share(**self.started["share"]))
            give_up = time.monotonic() + 10
            while self._client.read_status().state is not EngineState.SERVING:
                if time.monotonic() > give_up:
                    raise TimeoutError(f"the {form} scheduler does not serve: {self._client.read_status()}")
                time.sleep(1e-3)
        except BaseException:
            self._kill()
            raise
        self.stamps: NDArray[np.int64] = np.empty(0, np.int64)
        self.last: dict[str, int] = {}

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise TimeoutError(f"the {self.form} engine has not answered within {timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.form} engine ended with {self._process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def counters(self) -> dict[str, int]:
        time.sleep(0.02)  # a report of the scheduler on the GPU may be some ms old
        self._tell("steps")
        return self._answer(20)

    def steps(self) -> int:
        n = self.counters()
        return n["prefill_launches"] + n["decode_launches"]

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.started['pid']}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def run(self, prompts: Sequence[NDArray[np.uint32]], most: int) -> Ran:
        """All prompts at once, greedily, `most` tokens each."""
        client, share, n = self._client, self._client.share, len(prompts)
        first_step = self.steps()
        slots = np.arange(share.slot_begin, share.slot_begin + n, dtype=np.uint64)
        counts = np.array([len(prompt) for prompt in prompts], np.uint64)
        begins = np.uint64(share.prompt_begin) + np.cumsum(counts) - counts
        words = client.read_words()[:n]
        generations = [_ring.next_generation(_ring.unpack_word(int(word))[2]) for word in words]
        records = np.zeros(n, RECORD)
        records["generation"] = generations
        records["sequence"] = client.submitted + 1 + np.arange(n)
        records["prompt_begin"], records["prompt_count"] = begins, counts
        records["token_begin"] = share.token_begin + most * np.arange(n)
        records["max_tokens"], records["top_p"] = most, 1
        records["flags"] = int(RecordFlags.IGNORE_EOS | RecordFlags.NO_PERSIST)
        client.write_prompts(begins, counts, np.concatenate(prompts))
        client.write_records(slots, records)
        pending = [_ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, each, 0) for each in generations]
        cpu, begin = self.cpu_s(), time.perf_counter()
        published = client.publish(slots, words, np.array(pending, np.uint64))
        assert published.all()
        first = np.zeros(n)
        while True:
            found = unpack(client.read_words()[:n])
            now = time.perf_counter() - begin
            first[(first == 0) & (found.tokens > 0)] = now
            if (found.states == SlotState.DECODE_COMPLETED).all():
                break
            if now > _RUN_S:
                raise TimeoutError(f"{self.form}: not finished in {_RUN_S:g} s: {found}, {self.counters()}")
            time.sleep(_LOOK_S)
        cpu = self.cpu_s() - cpu
        if (found.finishes != Finish.LENGTH).any():
            raise RuntimeError(f"{self.form}: finished with {found.finishes.tolist()}, {self.counters()}")
        tokens = client.read_tokens(records["token_begin"].astype(np.uint64), found.tokens.astype(np.uint64))
        reports = client.read_reports(slots)
        empty = [_ring.slot_word(SlotState.EMPTY, Finish.NONE, each, 0) for each in generations]
        assert client.release(slots, client.read_words()[:n], np.array(empty, np.uint64)).all()
        span = int(reports["finished_ns"].max()) - int(reports["claimed_ns"].min())
        return Ran(
            [each.tolist() for each in np.split(tokens, n)], now, span / 1e9, first, (first_step, self.steps()), cpu
        )

    def end(self) -> None:
        self._tell("end")
        self.last = self._answer(_END_S)
        if code := self._process.wait(_END_S):
            raise RuntimeError(f"the {self.form} engine ended with {code}")
        self.stamps = np.load(self._stamps)

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self.end()
        finally:
            self._kill()


def prompts_of(lengths: Sequence[int], vocab: int, seed: int) -> list[NDArray[np.uint32]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, length, np.uint32) for length in lengths]


def correctness(folder: Path) -> dict[str, Any]:
    """Greedy tokens of a random float32 model of 4 layers, by both forms."""
    lengths = [5, 17, 63, 64, 65, 100, 128, 129, 200, 255, 300, 384, 450, 511, 640, 700]
    found = {}
    for form in FORMS:
        with Engine(form, folder, layers=4, small=True, prefill_chunk=128, step_tokens=512, deadline_s=60) as engine:
            prompts = prompts_of(lengths, engine.started["vocab"], 3)
            found[form] = engine.run(prompts, 48).tokens
    wrong = [length for length, a, b in zip(lengths, found["resident"], found["host"], strict=True) if a != b]
    distinct = len({token for tokens in found["host"] for token in tokens})
    return {"requests": len(lengths), "tokens": 48 * len(lengths), "distinct_tokens": distinct, "wrong": wrong}


def periods(stamps: NDArray[np.int64], ran: Ran, decoded: int) -> NDArray[np.float64]:
    """Between the ends of the last decode steps of a run, in us; the first and last few are left out."""
    end = ran.steps[1]
    return np.diff(stamps[end - decoded + 20 : end - 2]) / 1e3


def spread(us: NDArray[np.float64]) -> dict[str, float]:
    p50, p99 = np.percentile(us, [50, 99])
    return {"mean": round(float(us.mean()), 1), "p50": round(float(p50), 1), "p99": round(float(p99), 1),
            "max": round(float(us.max()), 1), "count": len(us)}  # fmt: skip


def measure(form: str, folder: Path, layers: int, repeats: int, spare: int, decoded: int = 300) -> dict[str, Any]:
    """Everything of one form."""
    cores = os.cpu_count() or 1
    runs: list[tuple[str, str, Ran]] = []
    long: list[tuple[float, float]] = []
    with Engine(form, folder, layers=layers, deadline_s=170, spare=spare) as engine:
        vocab = engine.started["vocab"]
        engine.run(prompts_of([64] * 16, vocab, 0), 20)
        for load in ("alone", "hogs"):
            with Hogs(2 * cores if load == "hogs" else 0, 150):
                time.sleep(2.0 if load == "hogs" else 0)
                for repeat in range(repeats):
                    for batch in (16, 1):
                        prompts = prompts_of([128] * batch, vocab, 10 + repeat)
                        runs.append((load, f"batch {batch}", engine.run(prompts, decoded)))
                    for count, length, most in MIXES:
                        prompts = prompts_of([length] * count, vocab, 20 + repeat)
                        runs.append((load, f"{count}x{length}->{most}", engine.run(prompts, most)))
                if load == "alone":
                    ran = engine.run(prompts_of([128] * 16, vocab, 30), 4 * decoded)
                    long.append((ran.client_s, ran.cpu_s))
    result: dict[str, Any] = {
        "gpu": engine.started["gpu"], "torch": engine.started["torch"],
        "model_s": round(engine.started["model_s"], 1), "capture_s": round(engine.started["capture_s"], 1),
        "counters": engine.last,
        "cpu": {"wall_s": round(long[0][0], 2), "cpu_s": long[0][1], "tokens": 16 * 4 * decoded,
                "percent_of_a_core": round(100 * long[0][1] / long[0][0], 2)},
    }  # fmt: skip
    for load in ("alone", "hogs"):
        rows: dict[str, Any] = {}
        for name in dict.fromkeys(name for _, name, _ in runs):
            mine = [ran for its_load, its_name, ran in runs if (its_load, its_name) == (load, name)]
            if name.startswith("batch"):
                rows[name + ", step us"] = spread(np.concatenate([periods(engine.stamps, r, decoded) for r in mine]))
            else:
                rows[name + ", makespan ms"] = [round(1e3 * ran.scheduler_s, 2) for ran in mine]
                rows[name + ", makespan ms, front end"] = [round(1e3 * ran.client_s, 2) for ran in mine]
        result[load] = rows
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--spare", type=int, default=1, help="multiprocessors that the skinny GEMMs leave alone")
    parser.add_argument("--skip-correctness", action="store_true")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    given = parser.parse_args()
    begin = time.perf_counter()
    found: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")},
        "layers": given.layers, "spare_processors": given.spare,
    }  # fmt: skip

    def keep(name: str, value: Any) -> None:
        found[name], found["total_s"] = value, round(time.perf_counter() - begin, 1)
        print(name, json.dumps(value), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        if not given.skip_correctness:
            keep("correctness", correctness(Path(folder)))
        for form in given.forms:
            keep(form, measure(form, Path(folder), given.layers, given.repeats, given.spare))


if __name__ == "__main__":
    main()
