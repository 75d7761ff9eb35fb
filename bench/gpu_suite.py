"""Everything that is tested and measured on a GPU, part by part, each within a time of its own.

    python -m bench.gpu_suite OUT [PART ...] [--gpu 0] [--seconds 460] [--list]

For a machine that is lent for minutes: no part starts that doesn't fit into what is left of `--seconds`, one that
runs over its time is ended with all that it started, and the next one starts. Each part writes OUT/NAME.json or
OUT/NAME/ as it goes, and OUT/NAME.log; OUT/suite-GPU.json says how each ended. With two GPUs two of these can run at
once, `--gpu 0` and `--gpu 1`: each takes sixteen cores; a part that takes both GPUs must have them alone.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu.run import ended, orphans_are_mine

CORES = 16
"""Beside each GPU."""


@dataclass(frozen=True)
class Part:
    """What is run (`{out}`: OUT/NAME, `{gpu}`, `{empty}`: a new folder), and how it goes."""

    limit_s: float
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    both_gpus: bool = False

    @property
    def chooses_its_gpu(self) -> bool:
        """And its cores."""
        return "{gpu}" in self.command or self.both_gpus


def gateway(limit_s: float, system: str, loads: tuple[str, ...], **env: str) -> Part:
    command = ("-m", "bench.gpu_gateway", "{out}.json", "--system", system, "--gpu", "{gpu}",
               "--only-loads", "--rate", "9", "--loads", *loads)  # fmt: skip
    return Part(limit_s, command, env)


def apart(limit_s: float, name: str, **env: str) -> Part:
    """Prefill on one GPU, decode on the other."""
    up = ("-m", "services.cli.main", "up", "--engine", "cuda", "--scheduler", "device", "--model", "llama3-8b-random",
          "--prefill", "1", "--decode", "1", "--port", "0", "--", sys.executable)  # fmt: skip
    env = {"HOSTLESS_GPU_BACKEND_WEIGHTS": "random", "HOSTLESS_GPU_BACKEND_DEVICE_DEADLINE_S": "200",
           "HOSTLESS_RUN": "{empty}", "HOSTLESS_STORE": "{empty}"} | env  # fmt: skip
    measured = ("-m", "bench.gpu_roles", "{out}.json", name, "--repeats", "1")
    return Part(limit_s, (*up, *measured), env, both_gpus=True)


INTERFERED = ("60 %, alone", "60 %, 2x copying", "60 %, C++ build")
LOADS = ("4 req/s, alone", "8 req/s, alone", "16 req/s, alone")
PARTS = {
    "tests-scheduler": Part(200, ("-m", "tests.gpu.run", "{out}", "tests/gpu/scheduler", "--limit", "150")),
    "tests-engine": Part(260, ("-m", "tests.gpu.run", "{out}", "tests/gpu/engine", "--limit", "120")),
    "tests-service": Part(330, ("-m", "tests.gpu.run", "{out}", "tests/gpu/service", "--limit", "200")),
    "tests-two-gpus": Part(
        60, ("-m", "tests.gpu.run", "{out}", "tests/gpu/scheduler/test_peer_memory.py"), both_gpus=True
    ),
    "sanitizers": Part(150, ("-m", "tests.gpu.run", "{out}", "--only-sanitize", "--limit", "70")),
    "neighbours": Part(80, ("-m", "bench.gpu_neighbours", "{out}.json", "--seconds", "60")),
    "scheduler": Part(60, ("-m", "bench.gpu_scheduler", "{out}.json")),
    "smollm2": Part(160, ("-m", "bench.gpu_correctness", "{out}.json", "--model", "SmolLM2-135M-Instruct")),
    "qwen3": Part(110, ("-m", "bench.gpu_correctness", "{out}.json", "--architecture", "qwen3")),
    "qwen2": Part(110, ("-m", "bench.gpu_correctness", "{out}.json", "--architecture", "qwen2")),
    "builds": Part(
        150,
        ("-m", "bench.gpu_scheduler", "{out}.json", "--builds", "as it is", "lands afterwards", "quick hand-over",
         "doorbells first", "all"),
    ),
    "built-all": Part(
        80, ("-m", "bench.gpu_resident", "{out}.json", "--forms", "resident", "--grades", "alone", "--rate", "0",
             "--long", "0", "--repeats", "3", "--build", "all"),
    ),
    "built-as-it-is": Part(
        80, ("-m", "bench.gpu_resident", "{out}.json", "--forms", "resident", "--grades", "alone", "--rate", "0",
             "--long", "0", "--repeats", "3"),
    ),
    "energy-skinny": Part(
        80, ("-m", "bench.gpu_resident", "{out}.json", "--forms", "resident", "--grades", "alone", "--rate", "4",
             "--long", "0", "--batches", "12", "8", "4", "1", "--repeats", "2"),
    ),
    "energy-cublas": Part(
        80, ("-m", "bench.gpu_resident", "{out}.json", "--forms", "resident", "--grades", "alone", "--rate", "4",
             "--long", "0", "--batches", "12", "8", "4", "1", "--repeats", "2", "--skinny-rows", "0"),
    ),
    "forms": Part(
        430,
        ("-m", "bench.gpu_resident", "{out}.json", "--rate", "9", "--long", "0",
         "--grades", "alone", "2x mixed", "8x mixed", "2x copying"),
    ),
    "first-start": gateway(
        150, "device", ("2 req/s, short answers, alone", "2 req/s, short answers, 8x mixed"),
        HOSTLESS_KERNELS="{out}/kernels", TRITON_CACHE_DIR="{out}/triton",
    ),
    "gateway-device": gateway(90, "device", INTERFERED),
    "gateway-host": gateway(110, "host", INTERFERED),
    "gateway-host-overlap": gateway(100, "host-overlap", INTERFERED),
    "gateway-repeat-1": gateway(75, "device", LOADS),
    "gateway-repeat-2": gateway(75, "device", LOADS),
    "fill-rate": apart(
        100, "GPU to GPU, filled at 10 GB/s", HOSTLESS_GPU_BACKEND_RECEIVE_BUFFER_MEMORY="device",
        HOSTLESS_GPU_BACKEND_FILL_BYTES_S="10GB",
    ),
    "fill-full": apart(100, "GPU to GPU", HOSTLESS_GPU_BACKEND_RECEIVE_BUFFER_MEMORY="device"),
}  # fmt: skip


def filled(words: str, out: Path, gpu: int, empty: Path) -> str:
    if words == "{empty}":
        words = tempfile.mkdtemp(dir=empty)
    for name, value in (("out", str(out)), ("gpu", str(gpu))):
        words = words.replace(f"{{{name}}}", value)
    return words


def run(part: Part, out: Path, gpu: int, empty: Path) -> tuple[int | None, float]:
    """Exit code, None at its time limit; seconds."""
    command = [sys.executable, *(filled(word, out, gpu, empty) for word in part.command)]
    own = {name: filled(value, out, gpu, empty) for name, value in part.env.items()}
    if not part.chooses_its_gpu:
        own["CUDA_VISIBLE_DEVICES"] = str(gpu)
    before, cores = dict(os.environ), os.sched_getaffinity(0)
    os.environ.update(own)
    wanted = cores & set(range(CORES * gpu, CORES * gpu + CORES))
    if not part.chooses_its_gpu and wanted:
        os.sched_setaffinity(0, wanted)
    try:
        return ended(command, out.with_suffix(".log"), part.limit_s)
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.sched_setaffinity(0, cores)


def gpus() -> int:
    """Of this machine."""
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) or 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help="in this order; else all")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of all parts")
    parser.add_argument("--list", action="store_true", help="the parts and their limits, and nothing else")
    given = parser.parse_args()
    names = given.parts or list(PARTS)
    if unknown := set(names) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if given.list:
        for name in names:
            print(f"{name:<22} {PARTS[name].limit_s:4.0f} s  {' '.join(PARTS[name].command)}")
        return
    orphans_are_mine()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # what was started is ended
    given.out.mkdir(parents=True, exist_ok=True)
    out, until = given.out.resolve(), time.monotonic() + given.seconds
    report = out / f"suite-{given.gpu}.json"
    how = json.loads(report.read_text()) if report.exists() else {}
    with tempfile.TemporaryDirectory() as empty:
        for name in names:
            part, left = PARTS[name], until - time.monotonic()
            if part.both_gpus and gpus() < 2:
                how[name] = {"ended": "not run: it needs two GPUs"}
            elif part.limit_s > left:
                how[name] = {"ended": f"not run: it may take {part.limit_s:.0f} s, and {left:.0f} are left"}
            else:
                code, seconds = run(part, out / name, given.gpu, Path(empty))
                how[name] = {"ended": "time limit" if code is None else f"code {code}", "seconds": f"{seconds:.0f}"}
            report.write_text(json.dumps(how, indent=1) + "\n")
            print(f"== {name}: {how[name]}", *_last(out / f"{name}.log"), sep="\n   ", flush=True)


def _last(log: Path, lines: int = 4) -> list[str]:
    return [line[:240] for line in log.read_text(errors="replace").splitlines()[-lines:]] if log.exists() else []


if __name__ == "__main__":
    main()
