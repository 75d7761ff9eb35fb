"""Tables and a picture of what bench.gpu_resident and bench.gpu_gateway have measured.

    python -m bench.gpu_report docs/benchmarks/gpu_resident.json docs/benchmarks/gpu_gateway.json PICTURE.svg

Prints Markdown; the picture shows what interference does to clients of each system.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.gpu_resident import GRADES, MIXES, OPEN

COLOURS = ("#1f6fb4", "#74a9cf", "#a6bddb", "#d95f0e")
NAMES = {
    "peer": "vLLM 0.24",
    "peer, later": "vLLM 0.24, later, another machine",
    "device": "Hostless, steps of up to 2,304 tokens (default)",
    "device, later": "Hostless, final code, second GPU of two",
    "device, later, again": "Hostless, final code, second GPU of two, again",
    "mixed1024": "Hostless, mixed steps of up to 1,024",
    "mixed1024, later": "Hostless, mixed steps of up to 1,024, later, vLLM's machine",
    "mixed256": "Hostless, mixed steps of up to 256",
    "turns": "Hostless, prefill and decode in turns",
    "host-overlap": "Hostless, host-driven, overlapped",
    "host": "Hostless, host-driven",
    "host-overlap, turns": "Hostless, host-driven, overlapped, in turns",
}
PICTURED = {
    "device": ("60 %", "on the GPU"), "host-overlap": ("60 %", "host-driven, overlapped"),
    "host": ("60 %", "host-driven"), "peer": ("8 req/s", "vLLM"),
}  # fmt: skip
"""Loads, and what the picture calls a system."""
WIDTH, LEFT, BAR, TOP, MOST = 760, 110, 17, 60, 3.6
"""`MOST`: times as long as alone, at the right edge."""


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


def grades_of(form: dict[str, Any]) -> list[str]:
    return [name for name, rows in form.items() if isinstance(rows, dict) and "batch 16" in rows]


def steps(found: dict[str, Any], forms: Sequence[str]) -> str:
    """p50 and p99 of a step, us, in brackets the p99 by that alone; and what the run took and used."""
    rows = []
    for batch in ("batch 16", "batch 1", OPEN):
        for form in forms:
            for grade in grades_of(found[form]):
                row, alone = found[form][grade].get(batch), found[form]["alone"].get(batch)
                if row is None or alone is None:
                    continue
                us, by, ran = row["step_us"], alone["step_us"]["p99"], row["runs"][0]
                rows.append((batch, form, grade, f"{us['p50']:,.0f}", f"{us['p99']:,.0f} ({us['p99'] / by:.3f})",
                             f"{alone['runs'][0]['makespan_ms'] / ran['makespan_ms']:.1%}",
                             f"{ran['mj_a_token']:,.0f}"))  # fmt: skip
    return table(("", "form", "grade", "p50", "p99", "throughput kept", "mJ a token"), rows)


def makespans(found: dict[str, Any], forms: Sequence[str]) -> str:
    mixes = [f"{count} x {length} -> {most}" for count, length, most in MIXES]
    rows = []
    for form in forms:
        for grade in grades_of(found[form]):
            if all(mix in found[form][grade] for mix in mixes):
                shown = [f"{found[form][grade][mix]['runs'][0]['makespan_ms']:,.0f}" for mix in mixes]
                rows.append((form, grade, *shown))
    return table(("ms", "", *mixes), rows)


def clients(found: dict[str, Any]) -> str:
    rows = []
    for load in dict.fromkeys(load for system in found.values() for load in system):
        for name, system in found.items():
            row = system.get(load)
            if name not in NAMES or not isinstance(row, dict) or "ttft_ms" not in row:
                continue
            if "rate" not in row:
                ttft, tpot = row["ttft_ms"], row["tpot_ms"]
                spread = (f"{ttft['p50']:.1f} / {ttft['max']:.1f}", f"{tpot['p50']:.2f} / {tpot['max']:.2f}")
                rows.append((load, NAMES[name], "", *spread, f"{row['mj_per_out_token']:,.0f}", ""))
                continue
            cpu = row["cpu_us_a_token"]
            engine, everything = cpu.get("gpu_backend"), sum(cpu.values())
            rows.append(
                (load, NAMES[name], f"{row['req_s']:.2f}",
                 f"{row['ttft_ms']['p50']:.1f} / {row['ttft_ms']['p99']:.0f}",
                 f"{row['tpot_ms']['mean']:.2f} / {row['tpot_ms']['p99']:.2f}", f"{row['mj_per_out_token']:.0f}",
                 f"{everything:.0f}" if engine is None else f"{engine:.0f} + {everything - engine:.0f}")
            )  # fmt: skip
    head = (
        "load",
        "",
        "req/s done",
        "TTFT p50 / p99, ms",
        "TPOT mean / p99, ms",
        "mJ a token",
        "CPU us a token: engine + front end",
    )
    return table(head, rows)


def picture(found: dict[str, Any]) -> str:
    """Mean TPOT by that alone: a group of bars for each grade."""
    bars: list[tuple[str, list[tuple[str, float]]]] = []
    for grade in list(GRADES)[1:]:
        row = []
        for name, (load, _) in PICTURED.items():
            held, alone = (found[name].get(f"{load}, {each}", {}) for each in (grade, "alone"))
            if "tpot_ms" in held:
                row.append((name, held["tpot_ms"]["mean"] / alone["tpot_ms"]["mean"]))
        bars.append((grade, row))
    high = TOP + sum(BAR * len(row) + 14 for _, row in bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}"',
        ' font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>',
        '<text x="16" y="22" font-size="15">Mean time between tokens at clients, by that alone; '
        "Llama-3 8B, one H200</text>",
    ]
    colours = dict(zip(PICTURED, COLOURS, strict=True))
    for at, (name, (_, called)) in enumerate(PICTURED.items()):
        parts.append(f'<text x="{LEFT + 160 * at}" y="44" fill="{colours[name]}">{called}</text>')
    y = TOP
    for grade, row in bars:
        parts.append(f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{grade}</text>')
        for name, times in row:
            long = (WIDTH - LEFT - 60) * min(times, MOST) / MOST
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{long:.1f}" height="{BAR - 2}" fill="{colours[name]}"/>')
            parts.append(f'<text x="{LEFT + long + 6:.1f}" y="{y + 12}" fill="{colours[name]}">{times:.2f}</text>')
            y += BAR
        y += 14
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("resident", type=Path, help="what bench.gpu_resident wrote")
    parser.add_argument("gateway", type=Path, help="what bench.gpu_gateway wrote")
    parser.add_argument("picture", type=Path, help="SVG to write")
    options = parser.parse_args()
    resident, gateway = json.loads(options.resident.read_text()), json.loads(options.gateway.read_text())
    forms = [form for form in ("resident", "host", "host-overlap") if form in resident]
    print(steps(resident, forms), makespans(resident, forms), clients(gateway), sep="\n")
    options.picture.write_text(picture(gateway))


if __name__ == "__main__":
    main()
