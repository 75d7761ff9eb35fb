"""Transport verbs against a bare C loop on libibverbs, on the same two devices, in one run.

python -m bench.fabric_verbs [--rounds 5] [--seconds 1.0] [--json FILE]

Without an RDMA device, all of it runs in the emulated machine of tests/rdma: then the ratios mean something, the
figures only there. The C loop (fabric/loop.c) posts a list of requests that it made once, and spins on its one
completion; the transport plans, copies and posts anew each time. Each takes turns; a figure is the median over the
rounds, a ratio the median of the rounds' ratios. Both of the transport's cores are measured.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from services.fabric.operations import TrafficClass
from services.fabric.remote_region import RemoteRegion
from services.fabric.transports import open_region
from services.fabric.verbs.device import CORE_VARIABLE, CORES, DEVICE_VARIABLE, active_devices, default_gid
from tests.fabric.conformance.owner import owner
from tests.rdma.vm import Machine

LOOP = Path(__file__).parent / "fabric/loop.c"
REGION = 4 << 20
LIMIT_S = 590.0
ROWS = (
    ("write", 8, 256, "256 words written"),
    ("read", 8, 256, "256 words read"),
    ("swap", 8, 256, "256 words swapped"),
    ("write", 128, 64, "64 records of 128 bytes written"),
    ("read", 4096, 8, "32 KiB of slot words read"),
    ("write", 65536, 16, "1 MiB written by 64 KiB"),
    ("read", 65536, 16, "1 MiB read by 64 KiB"),
    ("write", 8, 1, "one word written"),
    ("read", 8, 1, "one word read"),
)


def call(region: RemoteRegion, kind: str, size: int, count: int) -> Callable[[], object]:
    offsets = np.arange(count, dtype=np.uint64) * np.uint64(size)
    lengths, flat = np.full(count, size, np.uint64), np.zeros(count * size, np.uint8)
    zeros = np.zeros(count, np.uint64)
    traffic = TrafficClass.KV if size > 4096 else TrafficClass.MODEL
    if kind == "swap":
        return lambda: region.cas_many(offsets, zeros, zeros)
    if kind == "write":
        return lambda: region.scatter(offsets, lengths, flat, traffic)
    return lambda: region.gather(offsets, lengths, flat, traffic)


def rate(do: Callable[[], object], seconds: float) -> float:
    do()
    begun, calls = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < seconds:
        do()
        calls += 1
    return calls / spent


def measure(loop: Path, rounds: int, seconds: float) -> list[dict[str, Any]]:
    near, far = (active_devices() * 2)[:2]
    gids = [str(default_gid(device)) for device in (near, far)]
    os.environ[DEVICE_VARIABLE] = far
    with owner("verbs", "bench", REGION) as (_, descriptor):
        os.environ[DEVICE_VARIABLE] = near
        region = open_region(descriptor)
        rows = []
        for kind, size, count, name in ROWS:
            ours = call(region, kind, size, count)
            bare = [str(loop), near, gids[0], far, gids[1], kind, str(size), str(count), str(seconds)]
            pairs = []
            for _ in range(rounds):
                other = float(subprocess.run(bare, check=True, capture_output=True, text=True).stdout)
                pairs.append((rate(ours, seconds), other))
            own, other = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
            ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
            big = size > 4096
            scale, unit = (count * size / 1e9, "GB/s") if big else (count, "operations/s")
            rows.append(
                {
                    "name": name,
                    "unit": unit,
                    "ours": round(own * scale, 4 if big else 0),
                    "bare": round(other * scale, 4 if big else 0),
                    "ratio": round(ratio, 2),
                }
            )
            print(f"{name:34} {own * scale:12,.3f} {other * scale:12,.3f} {unit:13} {ratio:5.2f}", flush=True)
        region.close()
    return rows


def inside(folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Both cores, a process each, as a process has one device."""
    found: dict[str, Any] = {"machine": machine()}
    for core in CORES:
        print(f"core {core}: ours, bare, ratio", flush=True)
        command = [sys.executable, "-m", "bench.fabric_verbs", "--core", str(folder)]
        command += ["--rounds", str(rounds), "--seconds", str(seconds)]
        subprocess.run(command, check=True, env={**os.environ, CORE_VARIABLE: core})
        found[core] = json.loads((folder / "rows.json").read_text())
    return found


def machine() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "devices": active_devices(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side of each row of a round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--core", type=Path, help=argparse.SUPPRESS)  # this process measures; its folder
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # this machine measures; its folder
    asked = parser.parse_args()
    if asked.core:
        rows = measure(asked.core / "loop", asked.rounds, asked.seconds)
        (asked.core / "rows.json").write_text(json.dumps(rows))
        return 0
    if asked.inside:
        found = inside(asked.inside, asked.rounds, asked.seconds)
        (asked.inside / "found.json").write_text(json.dumps(found))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["cc", "-O2", "-o", str(folder / "loop"), str(LOOP), "-libverbs"], check=True)
        command = [sys.executable, "-m", "bench.fabric_verbs", "--inside", str(folder)]
        command += ["--rounds", str(asked.rounds), "--seconds", str(asked.seconds)]
        if active_devices():
            subprocess.run(command, check=True)
        elif code := Machine.prepare().run(command, folder, LIMIT_S):
            return code
        found = json.loads((folder / "found.json").read_text())
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
