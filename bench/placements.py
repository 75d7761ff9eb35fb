"""Placements a second on one core, with every engine reporting each 100 ms: the policies' own objects, and the whole
service by gRPC. Cost per decision against the number of engines, memory, a picture.

python -m bench.placements [--policies dualpath,...] [--engines 8,...,10000] [--json FILE] [--svg FILE]

A mesh of n engines, 8 a node, a third of the nodes for prefill, gets 10,000 n / 1,152 requests a second of agents:
prompts of 16k to 48k tokens, 98.7 % of them hits. A request is on its prefill engine for 0.2 s, on its decode engine
for 3 s, and read within 0.1 s of its placement. Time is made up: the policies' calls follow each other at once, and
only their CPU time is counted. The service is asked in real time; it and its callers have a core each.
"""

import argparse
import gc
import json
import platform
import time
import tracemalloc
from itertools import islice
from pathlib import Path

from bench.common.chart import Line, log_log
from bench.placing.load import PAGES, RATE, REPORT_S, Ledger, engines, requests, take
from bench.placing.service import measure_service
from services.global_scheduler.policy.registry import POLICIES, make_policy
from services.global_scheduler.policy.state import Load, Placement, Policy

ENGINES = (8, 24, 72, 144, 288, 576, 1152, 2304, 4608, 10_000)
WARM_UP_S = 4.0
BURST = 20  # placements a round, unless that takes longer than 20 ms to come together, or comes within 2 ms


def filled(name: str, count: int) -> tuple[Policy, list[str]]:
    policy, made = make_policy(name), engines(count)
    for engine in made:
        policy.add(engine, Load(0, 0, 0, PAGES))
    return policy, [engine.engine_id for engine in made]


def measure(name: str, count: int, placements: int) -> dict[str, float | str]:
    policy, names = filled(name, count)
    ledgers = {engine_id: Ledger() for engine_id in names}
    prompts: dict[str, int] = {}
    coming = requests()
    round_s = min(max(BURST / (RATE * count), 0.002), 0.02)
    now = policy_s = report_s = due = reports_due = 0.0
    reports = decided = most_waiting = 0
    gc.collect()
    while decided < placements:
        now += round_s
        due += RATE * count * round_s
        burst = list(islice(coming, int(due)))
        due -= len(burst)
        prompts |= {request.request_id: request.prompt_tokens for request in burst}
        reports_due += count * round_s / REPORT_S
        reporting = [names[(reports + i) % count] for i in range(int(reports_due))]
        reports += len(reporting)
        reports_due -= len(reporting)
        news = [(engine_id, ledgers[engine_id].report(now)) for engine_id in reporting]

        begun = time.thread_time()
        for engine_id, load in news:
            policy.report(engine_id, load)
        heard = time.thread_time()
        for request in burst:
            policy.submit(request)
        decisions = policy.decide()
        ended = time.thread_time()

        for decision in decisions:
            assert isinstance(decision, Placement), decision
            take(ledgers, decision, prompts.pop(decision.request_id), now)
        if now > WARM_UP_S:
            policy_s += ended - begun
            report_s += heard - begun
            decided += len(decisions)
            most_waiting = max(most_waiting, policy.waiting)
    return {
        "policy": name,
        "engines": count,
        "placements": decided,
        "us_per_decision": 1e6 * policy_s / decided,
        "of_it_reports_us": 1e6 * report_s / decided,
        "placements_per_s": decided / policy_s,
        "most_waiting": most_waiting,
    }


def memory(name: str, count: int = 1152, waiting: int = 10_000) -> dict[str, float | str]:
    """Python's bytes for a policy with its engines, and for each request that waits in it."""
    coming = requests()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        policy, names = filled(name, count)
        with_engines = tracemalloc.get_traced_memory()[0] - before
        for request in islice(coming, waiting):
            policy.submit(request)
        queued = tracemalloc.get_traced_memory()[0] - before - with_engines
    finally:
        tracemalloc.stop()
    return {"policy": name, "engines": len(names), "bytes": with_engines, "bytes_per_waiting": queued / waiting}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--engines", default=",".join(map(str, ENGINES)))
    parser.add_argument("--placements", type=int, default=20_000, help="of each figure")
    parser.add_argument("--service-s", type=float, default=20, help="length of the run by gRPC; 0: none")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    policies, counts = options.policies.split(","), [int(part) for part in options.engines.split(",")]
    rows = []
    for name in policies:
        for count in counts:
            rows.append(row := measure(name, count, options.placements))
            print(
                f"{name:<22}{count:>7} engines {row['us_per_decision']:7.1f} us a decision, "
                f"{row['of_it_reports_us']:4.1f} of them reports; {row['placements_per_s']:9,.0f} /s; "
                f"at most {row['most_waiting']} waiting"
            )
    sizes = [memory(name) for name in policies]
    for size in sizes:
        print(
            f"{size['policy']:<22}{size['bytes']:>10,} B for 1,152 engines, {size['bytes_per_waiting']:.0f} B waiting"
        )
    service = measure_service(options.service_s) if options.service_s else None
    if options.json:
        machine = {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
        }
        options.json.write_text(
            json.dumps({**machine, "policies": rows, "memory": sizes, "service": service}, indent=1) + "\n"
        )
    if options.svg:
        lines = [
            Line(
                name, [(float(row["engines"]), float(row["us_per_decision"])) for row in rows if row["policy"] == name]
            )
            for name in policies
        ]
        options.svg.write_text(log_log("Cost of a placement, reports included", "engines", "microseconds", lines))


if __name__ == "__main__":
    main()
