"""The paper's figures beside the simulator's: the tables of docs/benchmarks/simulator.md, and its pictures.

    python -m bench.paper_tables                 every section, about an hour on one core
    python -m bench.paper_tables d14 ablation    these; the others stay as they were
    python -m bench.paper_tables --render        tables and pictures from what was measured before

What is measured goes to docs/benchmarks/simulator.json, section by section.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.paper import offline, online, ratio, sensitivity, speed, split
from bench.paper.figure import Figure
from services.global_scheduler.simulator.charts import bars, lines

FOLDER = Path(__file__).resolve().parent.parent / "docs/benchmarks"
RESULTS = FOLDER / "simulator.json"


def d14() -> Iterator[Figure]:
    """The closed form against simulation, on both sides of each border."""
    agreeing = []
    for shape in ratio.SHAPES:
        for check in ratio.checks(shape):
            agreeing.append(check.agrees)
            gpus, storage_nics, dram = shape
            name = f"g={gpus} s={storage_nics} M={dram:g} B=50: {check.border}, {check.nodes}"
            words = f"{'inside' if check.inside else 'outside'}; {check.link}; {'ok' if check.agrees else 'DIFFERS'}"
            yield Figure(name, check.expected, check.measured, "", words)
    yield Figure("borders' sides that agree", len(agreeing), sum(agreeing), "")


SECTIONS: dict[str, Callable[[], Iterator[Figure]]] = {
    "jct-660b": offline.jct_660b,
    "jct-27b": offline.jct_27b,
    "jct-qwen": offline.jct_qwen,
    "append": offline.append,
    "ratio": offline.ratio,
    "ablation": offline.ablation,
    "online": online.online,
    "online-scale": online.online_scale,
    "d14": d14,
    "growth": speed.growth,
    "largest": speed.largest,
    "repeats": speed.repeats,
    "split": split.split,
    "sensitivity": sensitivity.sensitivity,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS])
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    for name in [] if options.render else options.sections or SECTIONS:
        started, figures = time.process_time(), []
        for figure in SECTIONS[name]():
            figures.append(asdict(figure))
            print(f"{name}: {row(figures[-1])}", flush=True)
        results = load()
        results[name] = {
            "date": time.strftime("%Y-%m-%d"),
            "cpu_s": round(time.process_time() - started, 1),
            "figures": figures,
        }
        RESULTS.write_text(json.dumps({key: results[key] for key in SECTIONS if key in results}, indent=1) + "\n")
    render(load())


def load() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def render(results: dict[str, Any]) -> None:
    """The tables as Markdown, the pictures as SVG."""
    text = [
        "# The simulator's figures\n",
        "`python -m bench.paper_tables`; what they rest on: [simulator.md](../simulator.md).\n",
    ]
    for name, result in results.items():
        text.append(f"## {name}\n\n{(SECTIONS[name].__doc__ or '').strip()}\n")
        text.append("| what | paper | ours | error | note |\n|---|---|---|---|---|")
        text += [f"| {row(figure)} |" for figure in result["figures"]]
        text.append(f"\n{result['cpu_s']:g} s of one core, {result['date']}.\n")
    pictures = {name: drawing for name, draw in PICTURES.items() if (drawing := draw(results))}
    for name, drawing in pictures.items():
        (FOLDER / f"simulator_{name}.svg").write_text(drawing)
        text.append(f"![{name}](simulator_{name}.svg)\n")
    (FOLDER / "simulator.md").write_text("\n".join(text))


def row(figure: dict[str, Any]) -> str:
    paper, ours, unit = figure["paper"], figure["ours"], figure["unit"]
    published = "" if paper is None else f"{paper:.4g}{unit}"
    error = "" if not paper else f"{100 * (ours / paper - 1):+.1f} %"
    return f"{figure['what']} | {published} | {ours:.4g}{unit} | {error} | {figure['note']}"


def beside(section: str, title: str) -> Callable[[dict[str, Any]], str]:
    """Bars of a section's figures that the paper has."""

    def draw(results: dict[str, Any]) -> str:
        figures = [f for f in results.get(section, {}).get("figures", []) if f["paper"] is not None]
        if not figures:
            return ""
        labels = [f["what"].split(":")[-1].strip()[:24] for f in figures]
        return bars(title, labels, {"paper": [f["paper"] for f in figures], "ours": [f["ours"] for f in figures]})

    return draw


def growing(results: dict[str, Any]) -> str:
    figures = [f for f in results.get("growth", {}).get("figures", []) if "GPUs" in f["what"]]
    points = [(float(f["what"].split()[0]), float(f["ours"])) for f in figures]
    return lines("CPU time of one core by cluster", "GPUs", {"measured": points}, " s") if points else ""


PICTURES: dict[str, Callable[[dict[str, Any]], str]] = {
    "ablation": beside("ablation", "JCT taken off Basic's (%), and max/avg"),
    "append": beside("append", "DualPath over Basic by append length"),
    "ratio": beside("ratio", "P/D sweep, DS 27B"),
    "growth": growing,
}


if __name__ == "__main__":
    main()
