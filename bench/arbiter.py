"""The arbiter of transport tcp on a shaped link (D8): how long 64 KiB of MODEL take while KV takes all it can get.

python -m bench.arbiter [--megabits 100] [--seconds 20] [--wait-ms 0.3] [--realtime]
    [--json FILE] [--svg FILE]

Two network namespaces, and a link with a queue of 1 MiB between them; bench/fabric/load.py sends, and
bench/fabric/owner.py owns the region. MODEL messages come at random times, a quarter of the link together; a time is
that of the call, from its start to the owner's answer. Each run both ways: writes to the owner, and reads from it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.common.chart import Line, log_log
from bench.common.readings import quantile
from bench.fabric.owner import owner
from bench.fabric.shaped_link import ShapedLink, shaped_link

RUNS = ("plain socket", "KV alone", "MODEL alone", "arbiter", "no arbiter", "both saturate")
LENGTH = 4 << 20
MODEL_SHARE = 0.25
MESSAGE = 64 << 10


def measure(link: ShapedLink, megabits: float, seconds: float, wait_ms: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with owner(link, LENGTH) as (descriptor, sink):
        for way in ("write", "read"):
            for run in RUNS:
                if run == "plain socket" and way == "read":
                    continue
                every = MESSAGE / (megabits / 8 * 1e6 * MODEL_SHARE)
                wanted = {"descriptor": descriptor, "sink": sink, "run": run, "way": way, "seconds": seconds}
                wanted |= {"every": every, "wait_ms": wait_ms}
                rows.append(row(link, wanted))
                print(text(rows[-1], rows[0]), flush=True)
    return rows


def row(link: ShapedLink, wanted: dict[str, Any]) -> dict[str, Any]:
    command = link.near_command(sys.executable, "-m", "bench.fabric.load", json.dumps(wanted))
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=wanted["seconds"] + 60)
    seen = json.loads(done.stdout)
    times = seen.pop("times")
    seconds = wanted["seconds"]
    found = {"way": wanted["way"], "run": wanted["run"], "messages": len(times), "window": seen.get("window", 0)}
    found |= {name: round(seen[f"{name}_bytes"] / seconds / 1e6, 3) for name in ("model", "kv")}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("most", 1.0)):
        found[f"{name}_ms"] = round(1e3 * quantile(times, share), 2) if times else 0
    return found


def text(found: dict[str, Any], plain: dict[str, Any]) -> str:
    of_link = (found["model"] + found["kv"]) / plain["kv"]
    return (
        f"{found['way']:5} {found['run']:13} MODEL {found['model']:7.2f} MB/s  KV {found['kv']:7.2f} MB/s  "
        f"{of_link:6.1%} of a plain socket   MODEL p50 {found['p50_ms']:7.2f} p99 {found['p99_ms']:7.2f} ms "
        f"({found['messages']} messages)   window {found['window']}"
    )


def ratios(rows: list[dict[str, Any]]) -> dict[str, Any]:
    by = {(found["way"], found["run"]): found for found in rows}
    link = by["write", "plain socket"]["kv"]
    found = {}
    for way in ("write", "read"):
        alone = by[way, "MODEL alone"]
        for run in ("arbiter", "no arbiter"):
            found[f"{way}, {run}: MODEL p99, of that alone"] = round(by[way, run]["p99_ms"] / alone["p99_ms"], 3)
            total = by[way, run]["model"] + by[way, run]["kv"]
            found[f"{way}, {run}: of a plain socket"] = round(total / link, 3)
        found[f"{way}, KV alone: of a plain socket"] = round(by[way, "KV alone"]["kv"] / link, 3)
        found[f"{way}, both saturate: KV's share"] = round(
            by[way, "both saturate"]["kv"] / (by[way, "both saturate"]["kv"] + by[way, "both saturate"]["model"]), 4
        )
    return found


def picture(rows: list[dict[str, Any]]) -> str:
    shares = (("p50_ms", 50), ("p90_ms", 90), ("p99_ms", 99))
    lines = [
        Line(found["run"], [(100 / (100 - share), found[name]) for name, share in shares])
        for found in rows
        if found["way"] == "write" and found["run"] in ("MODEL alone", "arbiter", "no arbiter")
    ]
    return log_log("64 KiB of MODEL beside saturating KV", "one message in so many takes longer", "ms", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabits", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--wait-ms", type=float, default=0.3)
    parser.add_argument("--realtime", action="store_true", help="at real-time priority, on a machine that is busy")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    asked = parser.parse_args()
    with shaped_link(asked.megabits, realtime=asked.realtime) as link:
        rows = measure(link, asked.megabits, asked.seconds, asked.wait_ms)
    summary = ratios(rows)
    for name, value in summary.items():
        print(f"{name:50} {value}")
    if asked.json:
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        setup = {"megabits": asked.megabits, "seconds": asked.seconds, "wait_ms": asked.wait_ms}
        setup |= {"realtime": asked.realtime, "load_average": os.getloadavg()[0]}
        asked.json.write_text(json.dumps({**machine, **setup, "rows": rows, "ratios": summary}, indent=1) + "\n")
    if asked.svg:
        asked.svg.write_text(picture(rows))


if __name__ == "__main__":
    main()
