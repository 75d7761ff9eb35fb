"""What clients of a GPU see: the whole mesh, or another OpenAI server, under load and interference.

    python -m bench.gpu_gateway OUT.json --system device|host|host-overlap
    python -m bench.gpu_gateway OUT.json --system URL --pid PID

Either takes `--loads "4 req/s, alone" "60 %, 2x mixed"` to measure only those; what 60 % means is found
by `saturation`, all requests at once, or told by `--rate`.

Cores are divided: the engine, and all of another server, on 0-7; the mesh's front end on 8-13; clients
(bench/gpu/clients.py) on 14-15. Hogs share the engine's cores.
`--gpu 1` takes the second GPU and cores 16-31 instead, so that two systems can be measured at the same time.
Loads repeat prompts, as one seed draws them all: another server's prefix cache must be off, like the mesh's KV store.
OUT is written after each part, so that a run that is cut short keeps what it has.
"""

import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common.cpu_quota import OneCore
from bench.common.hogs import Hogs
from bench.common.readings import cpu_s
from bench.gpu.energy import Energy
from bench.gpu.stream import stream
from bench.gpu.systems import Mesh, Place, Server


@dataclass(frozen=True)
class Load:
    """Requests of an open loop, and what the engine's cores are kept busy with meanwhile."""

    grade: str = "alone"
    rate: float | None = None
    """A second; 0: all at once; None: as `--rate` says."""
    count: int = 96
    answers: tuple[int, int] = (463, 1024)
    """Tokens: their mean, and the most."""
    limit_s: float = 75.0
    """Longer than that is given up."""


GRADES = {"alone": ("", 0), "2x mixed": ("mixed", 16), "2x copying": ("copy", 16), "8x mixed": ("mixed", 64),
          "C++ build": ("build", 16), "one core": ("", 0)}  # fmt: skip
LOADS = {
    **{f"{rate:g} req/s, alone": Load(rate=rate, count=count) for rate, count in [(4.0, 48), (8.0, 64), (16.0, 96)]},
    "saturation": Load(rate=0, count=384),
    **{f"60 %, {grade}": Load(grade) for grade in GRADES},
    **{f"2 req/s, short answers, {grade}": Load(grade, 2.0, 16, (64, 128)) for grade in ("alone", "8x mixed")},
}
"""As many requests under each grade as alone, so that their tails can be compared."""


@contextlib.contextmanager
def under(grade: str, pids: list[int], cores: range) -> Iterator[str]:
    """Yields how the engine's processes were held down, if they were."""
    kind, count = GRADES[grade]
    if grade == "one core":
        with OneCore(pids) as quota:
            yield quota.how
    elif kind:
        with Hogs(kind, count, 90, cores):
            time.sleep(1.2)
            yield ""
    else:
        yield ""


def one(url: str, model: str, prompt: list[int], count: int) -> tuple[float, float]:
    """Seconds to the first token of a streamed completion, and from one token to the next."""
    _, stamps = stream(url, model, prompt, count, timeout_s=60)
    return stamps[0], (stamps[-1] - stamps[0]) / max(1, count - 1)


def one_at_a_time(system: Mesh | Server, model: str, lengths: list[int], count: int = 64) -> dict[str, Any]:
    """The first request is not counted."""
    rng, joules, before = random.Random(1), Energy(system.place.gpu), None
    ttft, tpot = [], []
    for tokens in (lengths[0], *lengths):
        first, rest = one(system.url, model, [rng.randrange(100, 128_000) for _ in range(tokens)], count)
        ttft.append(1e3 * first)
        tpot.append(1e3 * rest)
        before = joules.joules() if before is None else before
        time.sleep(0.02)
    after = joules.joules()
    ttft, tpot = sorted(ttft[1:]), sorted(tpot[1:])
    used = None if before is None or after is None else round(1e3 * (after - before) / (count * len(lengths)), 1)
    return {"prompt_tokens": round(statistics.mean(lengths)), "ttft_ms": _middle_and_worst(ttft),
            "tpot_ms": _middle_and_worst(tpot), "count": len(lengths), "mj_per_out_token": used}  # fmt: skip


def _middle_and_worst(ascending: list[float]) -> dict[str, float]:
    return {"p50": round(statistics.median(ascending), 3), "max": round(ascending[-1], 3)}


def typical_lengths(count: int) -> list[int]:
    """Of prompts, as `load` has them; half have 620 tokens or less."""
    rng = random.Random(5)
    return [round(min(4096, max(16, rng.lognormvariate(math.log(620), 1)))) for _ in range(count)]


def idle_watts(gpu: int, seconds: float = 2.0) -> float | None:
    """Of the GPU while nobody asks for anything."""
    energy = Energy(gpu)
    time.sleep(1.0)
    begin, before = time.monotonic(), energy.joules()
    time.sleep(seconds)
    after = energy.joules()
    return None if before is None or after is None else round((after - before) / (time.monotonic() - begin), 1)


def load(system: Mesh | Server, model: str, what: Load, rate: float) -> dict[str, Any]:
    """What clients see in a process of their own. Raises RuntimeError, TimeoutExpired."""
    place, (mean, most) = system.place, what.answers
    command = [
        sys.executable, "-m", "bench.gpu.clients", system.url, model, "--rate", str(rate), "--count", str(what.count),
        "--gpu", str(place.gpu), "--cores", f"{place.clients[0]}-{place.clients[-1]}",
        "--mean-out", str(mean), "--most-out", str(most),
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=what.limit_s)
    if ran.returncode:
        raise RuntimeError(ran.stderr[-1500:])
    found: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


def a_token(before: Mapping[str, float], after: Mapping[str, float], tokens: int) -> dict[str, float]:
    """CPU microseconds a token out, by process."""
    return {name: round(1e6 * (after[name] - before[name]) / max(1, tokens), 2) for name in after}


def measure(system: Mesh | Server, loads: list[str], base: float, singles: bool, keep: Any) -> None:
    """`base`: requests a second of loads that don't say; 0: 60 % of what saturates the system, which is then a load."""
    with urllib.request.urlopen(system.url + "/v1/models", timeout=10) as answer:
        model = json.load(answer)["data"][0]["id"]
    for count in (1, 24):
        warm = load(system, model, Load(count=count, answers=(32, 64)), 0)
    keep("warm-up", {name: warm[name] for name in ("requests", "failed", "errors")})
    if warm["failed"]:
        sys.exit(f"{warm['failed']} of {warm['requests']} requests failed while nothing else ran: {warm['errors']}")
    if singles:
        for tokens in (1000, 600):
            keep(f"one at a time, {tokens} tokens", one_at_a_time(system, model, [tokens] * 7))
        keep("one at a time, lengths of the loads", one_at_a_time(system, model, typical_lengths(24)))
        keep("nobody", {"watts": idle_watts(system.place.gpu)})
    for name in loads:
        what = LOADS[name]
        with under(what.grade, system.engine_pids, system.place.engine) as how:
            before = {process: cpu_s(pid) for process, pid in system.pids.items()}
            try:
                found = load(system, model, what, base if what.rate is None else what.rate)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                keep(name, {"failed": repr(error)[-500:]})
                continue
            after = {process: cpu_s(pid) for process, pid in system.pids.items()}
        if not base and what.rate == 0:
            base = round(0.6 * found["saturated_req_s"], 1)
        found["cpu_us_a_token"], found["held"] = a_token(before, after, found["completion_tokens"]), how
        keep(name, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--system", required=True, help="device, host, host-overlap; or the URL of another server")
    parser.add_argument("--pid", type=int, default=0, help="of that server")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--name", default="", help="of the results in OUT; else `peer`, or the scheduler's")
    parser.add_argument(
        "--loads", nargs="+", choices=list(LOADS), default=list(LOADS), metavar="LOAD",
        help="; ".join(LOADS).replace("%", "%%"),
    )  # fmt: skip
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second of loads named 60 %%")
    parser.add_argument("--only-loads", action="store_true", help="no requests one at a time")
    parser.add_argument("--deadline", type=float, default=400, help="seconds until the scheduler on the GPU gives up")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # what was started is stopped
    results: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    name, place = given.name or ("peer" if given.pid else given.system), Place(given.gpu)
    mine = results.setdefault(name, {})
    begin = time.monotonic()

    def keep(part: str, value: Any) -> None:
        mine[part], mine["total_s"] = value, round(time.monotonic() - begin, 1)
        given.out.write_text(json.dumps(results, indent=1) + "\n")
        short = value
        if "ttft_ms" in value and "rate" in value:
            short = {"req_s": round(value["req_s"], 2), "of": value["requests"], "failed": value["failed"],
                     "ttft": [value["ttft_ms"]["p50"], value["ttft_ms"]["p99"]],
                     "tpot": [value["tpot_ms"]["mean"], value["tpot_ms"]["p99"]],
                     "itl": value["itl_ms"]["max"], "saturated": value["saturated_req_s"],
                     "mJ": value["mj_per_out_token"], "cpu": value["cpu_us_a_token"]}  # fmt: skip
        print(name, part, json.dumps(short), f"{mine['total_s']} s", flush=True)

    os.sched_setaffinity(0, place.clients)
    if given.pid:
        measure(Server(given.system, given.pid, place), given.loads, given.rate, not given.only_loads, keep)
        return
    os.sched_setaffinity(0, [*place.engine, *place.front])  # for the mesh to start with
    with Mesh(given.system, place, 8123 + given.gpu, given.deadline) as mesh:
        os.sched_setaffinity(0, place.clients)
        keep("ready", {"ready_s": mesh.ready_s})
        measure(mesh, given.loads, given.rate, not given.only_loads, keep)


if __name__ == "__main__":
    main()
