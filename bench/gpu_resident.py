"""The scheduler on the GPU against the host-driven loops: same policy, same graphs, same ring, one H200.

    python -m bench.gpu_resident OUT.json [--forms resident host host-overlap] [--layers 32] [--repeats 1] [--quick]

For each form an engine's process of its own (gpu/resident_engine.py) serves a ring in shared memory; this process is
the front end. Steps are timed on the GPU: the last kernel of every graph notes its clock. Everything is measured
alone first, then under each grade of interference, on all cores that this process may use: decodes of 16 and of 1, and
an open loop at `--rate` requests a second. OUT is written after each
part. Every wait has a deadline, and so has the scheduler on the GPU.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.common.cpu_quota import OneCore
from bench.common.hogs import Hogs
from bench.gpu.requests import prompts_of, requests_of
from bench.gpu.resident_client import Engine, Ran
from tests.gpu.scheduler.builds import BUILDS

FORMS = ("resident", "host", "host-overlap")
MIXES = ((16, 512, 32), (16, 512, 128), (16, 1024, 512), (64, 256, 64))
"""Requests, tokens of each prompt, tokens of each answer."""
GRADES = {"alone": ("", 0), "2x mixed": ("mixed", 2), "2x copying": ("copy", 2), "8x mixed": ("mixed", 8),
          "C++ build": ("build", 2), "one core": ("", 0)}  # fmt: skip
"""Kind of hogs, and how many of them a core."""
MIXED_UNDER = ("alone", "2x mixed")
DECODED, LONG = 300, 2000
OPEN, OPEN_COUNT = "open loop", 64


@contextlib.contextmanager
def under(grade: str, pid: int) -> Iterator[str]:
    """Yields how the engine's process was held down, if it was."""
    kind, a_core = GRADES[grade]
    if grade == "one core":
        with OneCore([pid]) as quota:
            yield quota.how
    elif kind:
        with Hogs(kind, a_core * len(os.sched_getaffinity(0)), 60):
            time.sleep(1.0 + 0.1 * a_core)
            yield ""
    else:
        yield ""


def periods(stamps: NDArray[np.int64], ran: Ran, decoded: int) -> NDArray[np.float64]:
    """Between the ends of the last decode steps of a run, in us; the first and last few are left out."""
    end = ran.steps[1]
    return np.diff(stamps[end - decoded + 20 : end - 4]) / 1e3


def periods_of_all(stamps: NDArray[np.int64], ran: Ran) -> NDArray[np.float64]:
    """Between the ends of all steps of a run, in us, prompts' steps among them."""
    begin, end = ran.steps
    return np.diff(stamps[begin + 1 : end + 1]) / 1e3


def spread(us: NDArray[np.float64]) -> dict[str, float]:
    p50, p99 = np.percentile(us, [50, 99])
    return {"mean": round(float(us.mean()), 1), "p50": round(float(p50), 1), "p99": round(float(p99), 1),
            "max": round(float(us.max()), 1), "count": len(us)}  # fmt: skip


def told(ran: Ran) -> dict[str, Any]:
    tokens = sum(map(len, ran.tokens))
    return {
        "makespan_ms": round(1e3 * ran.scheduler_s, 2), "client_ms": round(1e3 * ran.client_s, 2),
        "cpu_percent": round(100 * ran.cpu_s / ran.client_s, 2), "cpu_us_a_token": round(1e6 * ran.cpu_s / tokens, 2),
        "mj_a_token": None if ran.joules is None else round(1e3 * ran.joules / tokens, 1),
        "first_token_ms": [round(1e3 * float(t), 2) for t in np.percentile(ran.first, [0, 50, 100])],
    }  # fmt: skip


def measure(form: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Everything of one form."""
    runs: list[tuple[str, str, int, Ran]] = []
    held: dict[str, str] = {}
    with Engine(
        form, folder, layers=given.layers, deadline_s=280, build=given.build, skinny_rows=given.skinny_rows
    ) as engine:
        vocab, pid = engine.started["vocab"], engine.started["pid"]
        engine.run(prompts_of([64] * 16, vocab, 0), 20)
        for grade in given.grades:
            with under(grade, pid) as how:
                held[grade] = how
                if given.rate:
                    runs.append((grade, OPEN, 0, engine.open_loop(*requests_of(given.rate, OPEN_COUNT, vocab))))
                for repeat in range(given.repeats):
                    for batch in given.batches:
                        prompts = prompts_of([128] * batch, vocab, 10 + repeat)
                        runs.append((grade, f"batch {batch}", DECODED, engine.run(prompts, DECODED)))
                    for count, length, most in MIXES if grade in MIXED_UNDER else ():
                        prompts = prompts_of([length] * count, vocab, 20 + repeat)
                        runs.append((grade, f"{count} x {length} -> {most}", most, engine.run(prompts, most)))
            if grade == "alone":
                for count in (1000, 500, 1000, 500):
                    runs.append((grade, f"prompt of {count}", 2, engine.run(prompts_of([count], vocab, 29), 2)))
                if given.long:
                    ran = engine.run(prompts_of([128] * 16, vocab, 30), given.long)
                    runs.append((grade, f"16 x 128 -> {given.long}", given.long, ran))
    result: dict[str, Any] = {
        "gpu": engine.started["gpu"], "torch": engine.started["torch"], "held": held,
        "model_s": round(engine.started["model_s"], 1), "capture_s": round(engine.started["capture_s"], 1),
        "counters": engine.last,
    }  # fmt: skip
    for grade in given.grades:
        rows: dict[str, Any] = {}
        for its_grade, name, most, ran in runs:
            if its_grade != grade:
                continue
            row = rows.setdefault(name, {"runs": []})
            row["runs"].append(told(ran))
            if name == OPEN:
                row.setdefault("us", []).append(periods_of_all(engine.stamps, ran))
            elif name.startswith("batch"):
                row.setdefault("us", []).append(periods(engine.stamps, ran, most))
        for row in rows.values():
            if "us" in row:
                row["step_us"] = spread(np.concatenate(row.pop("us")))
        result[grade] = rows
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--long", type=int, default=LONG, help="tokens of the long decode of 16, alone; 0: none")
    parser.add_argument("--rate", type=float, default=9.0, help="of the open loop, requests a second; 0: none")
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 1], help="of the decodes")
    parser.add_argument("--skinny-rows", type=int, default=8, help="as CudaSettings has it")
    parser.add_argument("--build", choices=list(BUILDS), default="as it is", help="of the scheduler on the GPU")
    parser.add_argument("--grades", nargs="+", choices=list(GRADES), default=list(GRADES))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # what was started is stopped
    begin = time.perf_counter()
    found: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")},
        "layers": given.layers,
    }  # fmt: skip
    for form in given.forms:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found[form] = measure(form, Path(folder), given)
            except (RuntimeError, OSError) as error:
                found[form] = {"failed": repr(error)}
        found["total_s"] = round(time.perf_counter() - begin, 1)
        print(form, json.dumps(found[form]), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
