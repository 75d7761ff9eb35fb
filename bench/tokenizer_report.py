"""The figures of bench/tokenizer.py as a page."""

import math
from typing import Any


def ratios(us: dict[str, float]) -> tuple[float, float]:
    """How many times longer the reference takes than ours, and the quickest of the others (NaN: there is none)."""
    others = [taken for name, taken in us.items() if name not in {"hostless", "tokenizers"}]
    return us["tokenizers"] / us["hostless"], min(others, default=math.nan) / us["hostless"]


def markdown(result: dict[str, Any]) -> str:
    """Nanoseconds a token by vocabulary, kind and size, in each state of the caches; and the worst cases."""
    machine, versions = result["machine"], result["versions"]
    lines = [
        "# Encoding: ours and others",
        "",
        "Made by `bench/tokenizer.py`: one run, one thread, the same texts for all, no text twice. Nanoseconds of the",
        "thread's own time a token, median. *cold*: 64 MiB were walked before each call; *code warm*: then one word",
        "was encoded; *warm*: nothing was walked. Ratios: how many times longer `tokenizers`, and the quickest of the",
        "others, took.",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, scanner {machine['scanner']}, "
        f"{machine['date']}, load average {machine['load_average']:.1f}. "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
    ]
    for name in dict.fromkeys(row["vocabulary"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["vocabulary"] == name]
        lines += ["", f"## {name}", *_table(rows), "", *_worst([w for w in result["worst"] if w["vocabulary"] == name])]
    return "\n".join(lines) + "\n"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    encoders = list(rows[0]["us"]["cold"])
    lines = [
        "",
        f"| text | tokens | caches | {' | '.join(encoders)} | tokenizers | best other |",
        "|---" * (len(encoders) + 5) + "|",
    ]
    for row in rows:
        for state, us in row["us"].items():
            each = " | ".join(f"{1e3 * us[name] / row['tokens']:.0f}" for name in encoders)
            library, best = ratios(us)
            last = "" if math.isnan(best) else f"{best:.1f}x"
            size = f"{row['tokens']:.0f}" if isinstance(row["size"], int) else row["size"]
            lines.append(f"| {row['kind']} | {size} | {state} | {each} | {library:.1f}x | {last} |")
    unlike = {encoder for row in rows for encoder in row["differ"]}
    return [*lines, *(["", f"Other ids than ours on some text: {', '.join(sorted(unlike))}."] if unlike else [])]


def _worst(rows: list[dict[str, Any]]) -> list[str]:
    encoders = list(rows[0]["ms"]) if rows else []
    lines = [f"| a megabyte of | {' | '.join(encoders)} |", "|---" * (len(encoders) + 1) + "|"]
    for row in rows:
        each = (f"{taken:.1f} ms" if taken else "over 20 s, or failed" for taken in row["ms"].values())
        lines.append(f"| {row['kind']} | {' | '.join(each)} |")
    return lines
