"""Tables and a picture of what bench.gpu_resident and bench.gpu_gateway have measured.

    python -m bench.gpu_report docs/benchmarks/gpu_resident.json docs/benchmarks/gpu_gateway.json PICTURE.svg

Prints Markdown; the picture shows what interference does to clients of each system.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.gpu_resident import MIXES

COLOURS = ("#1f6fb4", "#d95f0e")
NAMES = {
    "peer": "vLLM 0.24",
    "turns": "Hostless, prefill and decode in turns",
    "device": "Hostless, mixed steps of up to 1,024 tokens (default)",
    "mixed256": "Hostless, mixed steps of up to 256",
    "host-overlap": "Hostless, host-driven, overlapped, in turns",
}
PICTURED = ("turns", "peer")
WIDTH, LEFT, ROW, TOP = 760, 130, 46, 60


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n"


def grades_of(form: dict[str, Any]) -> list[str]:
    return [name for name, rows in form.items() if isinstance(rows, dict) and "batch 16" in rows]


def steps(found: dict[str, Any], forms: Sequence[str]) -> str:
    """p50 and p99 of a decode step, us; in brackets the p99 by that alone."""
    rows = []
    for batch in ("batch 16", "batch 1"):
        for form in forms:
            alone = found[form]["alone"][batch]["step_us"]["p99"]
            for grade in grades_of(found[form]):
                us = found[form][grade][batch]["step_us"]
                rows.append((batch, form, grade, f"{us['p50']:,.0f}", f"{us['p99']:,.0f} ({us['p99'] / alone:.2f})"))
    return table(("", "form", "grade", "p50", "p99"), rows)


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
    """Mean TPOT at 8 requests a second, a pair of bars a grade; the line is the p99."""
    loads = [load for load in found[PICTURED[0]] if load.startswith("8 req/s")]
    rows = {load: {name: found[name][load]["tpot_ms"] for name in PICTURED if "tpot_ms" in found[name].get(load, {})}
            for load in loads}  # fmt: skip
    most = max(tpot["p99"] for row in rows.values() for tpot in row.values())
    scale = (WIDTH - LEFT - 80) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {TOP + ROW * len(loads) + 20}"',
        ' font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>',
        '<text x="16" y="22" font-size="15">Time between tokens at clients, ms: mean (bar) and p99 (line); '
        "8 requests/s, Llama-3 8B, one H200</text>",
    ]
    for at, (name, colour) in enumerate(zip(PICTURED, COLOURS, strict=True)):
        parts.append(f'<text x="{LEFT + 260 * at}" y="44" fill="{colour}">{NAMES[name]}</text>')
    for number, (load, row) in enumerate(rows.items()):
        y = TOP + ROW * number
        parts.append(f'<text x="{LEFT - 10}" y="{y + 24}" text-anchor="end">{load.partition(", ")[2]}</text>')
        for at, (name, tpot) in enumerate(row.items()):
            colour, high, end = COLOURS[PICTURED.index(name)], y + 4 + 18 * at, LEFT + scale * tpot["p99"]
            parts.append(
                f'<rect x="{LEFT}" y="{high}" width="{scale * tpot["mean"]:.1f}" height="15" fill="{colour}"/>'
            )
            parts.append(f'<path d="M{LEFT} {high + 7.5}H{end:.1f}" stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<text x="{end + 6:.1f}" y="{high + 12}" fill="{colour}">{tpot["mean"]:.2f}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    resident, gateway = (json.loads(Path(name).read_text()) for name in sys.argv[1:3])
    forms = [form for form in ("resident", "host", "host-overlap") if form in resident]
    print(steps(resident, forms), makespans(resident, forms), clients(gateway), sep="\n")
    Path(sys.argv[3]).write_text(picture(gateway))


if __name__ == "__main__":
    main()
