"""The figures of bench/tokenizer.py as a page."""

import math
from typing import Any


def ratios(us: dict[str, float]) -> tuple[float, float]:
    """How many times longer the reference takes than ours, and the quickest of the others (NaN: there is none)."""
    others = [taken for name, taken in us.items() if name not in {"hostless", "tokenizers"}]
    return us["tokenizers"] / us["hostless"], min(others, default=math.nan) / us["hostless"]


def markdown(parts: list[dict[str, Any]]) -> str:
    """Nanoseconds a token by vocabulary, kind and size, in each state of the caches; and the worst cases."""
    lines = [
        "# Encoding: ours and others",
        "",
        "Made by `bench/tokenizer.py`: one thread, the same texts for all, no text twice. Nanoseconds of the",
        "thread's own time a token, median. *cold*: 64 MiB were walked before each call; *code warm*: then one word",
        "was encoded; *warm*: nothing was walked. Ratios: how many times longer `tokenizers`, and the quickest of the",
        "others, took.",
        "",
        *_where(parts),
        "",
        "Rows from 128 tokens up in which `tokenizers` takes 20 times as long, and the quickest other 1.5 times:",
        "",
        *_met([part for part in parts if part["texts"] != "worst"]),
    ]
    for name in dict.fromkeys(part["vocabulary"] for part in parts):
        lines += ["", f"## {name}"]
        for part in parts:
            if part["vocabulary"] != name:
                continue
            load = f"load average {part['load_average']:.1f} before, {part['load_average_after']:.1f} after"
            table = _worst(part["rows"]) if part["texts"] == "worst" else _table(part["rows"])
            lines += ["", f"{part['texts']}: {load}", "", *table]
    return "\n".join(lines) + "\n"


def _where(parts: list[dict[str, Any]]) -> list[str]:
    """The machines and versions that parts were measured with, each once."""
    seen = []
    for part in parts:
        versions = ", ".join(f"{name} {version}" for name, version in part["versions"].items())
        where = (
            f"{part['cpu']}, {part['cores']} cores, Python {part['python']}, scanner {part['scanner']}, {part['date']}."
        )
        seen += [where, versions + "."]
    return list(dict.fromkeys(seen))


def _met(parts: list[dict[str, Any]]) -> list[str]:
    states = list(parts[0]["rows"][0]["us"]) if parts else []
    lines = [f"| text | {' | '.join(f'{state}, 20x | {state}, 1.5x' for state in states)} |"]
    lines.append("|---" * (2 * len(states) + 1) + "|")
    for kind in [*dict.fromkeys(part["texts"] for part in parts), "all"]:
        rows = [r for p in parts if kind in (p["texts"], "all") for r in p["rows"] if r["size"] != 10]
        cells = []
        for state in states:
            found = [ratios(row["us"][state]) for row in rows]
            others = [best for _, best in found if not math.isnan(best)]
            cells += [f"{sum(library >= 20 for library, _ in found)} of {len(found)}"]
            cells += [f"{sum(best >= 1.5 for best in others)} of {len(others)}"]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    encoders = list(rows[0]["us"]["cold"])
    lines = [
        f"| tokens | caches | {' | '.join(encoders)} | tokenizers | best other |",
        "|---" * (len(encoders) + 4) + "|",
    ]
    for row in rows:
        for state, us in row["us"].items():
            each = " | ".join(f"{1e3 * us[name] / row['tokens']:.0f}" for name in encoders)
            library, best = ratios(us)
            last = "" if math.isnan(best) else f"{best:.1f}x"
            size = f"{row['tokens']:.0f}" if isinstance(row["size"], int) else row["size"]
            lines.append(f"| {size} | {state} | {each} | {library:.1f}x | {last} |")
    unlike = {encoder for row in rows for encoder in row["differ"]}
    return [*lines, *(["", f"Other ids than ours on some text: {', '.join(sorted(unlike))}."] if unlike else [])]


def _worst(rows: list[dict[str, Any]]) -> list[str]:
    encoders = list(rows[0]["ms"]) if rows else []
    lines = [f"| a megabyte of | {' | '.join(encoders)} |", "|---" * (len(encoders) + 1) + "|"]
    for row in rows:
        each = (f"{taken:.1f} ms" if taken else "over 20 s, or failed" for taken in row["ms"].values())
        lines.append(f"| {row['kind']} | {' | '.join(each)} |")
    return lines
