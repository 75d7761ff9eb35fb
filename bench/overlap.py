"""How much of loading hides behind computing when a prompt is prefilled layer by layer (D6).

python -m bench.overlap [--hit 32] [--tokens 256] [--repeats 5] [--engines torch synthetic] [--json FILE]

The hit lies in another process's memory, in a network namespace behind a link (tc tbf) whose rate is chosen so that its
bytes take as long as computing the rest does; transport tcp, as on D2's way from a decode engine's buffer. Beside it
the slow reference: all blocks loaded, then computed. torch computes a model on one core, synthetic waits as long as a
model of the same shape would take. A ratio is that of the time from claim to first token to the longer of loading alone
and computing alone, medians all of them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.common.machine import machine
from bench.fabric.owner import owner
from bench.fabric.shaped_link import ShapedLink, shaped_link
from services.gpu_backend.engine import PAGE_TOKENS

FAST_MEGABITS = 4000.0
"""For finding out how long computing takes."""
SHAPE = {"layers": 30, "width": 192}
"""Of SmolLM2-135M's KV in float32: 3 heads of 64."""
SYNTHETIC_S = 1.0
BLOCK_BYTES = SHAPE["layers"] * 2 * PAGE_TOKENS * SHAPE["width"] * 4


def prefills(link: ShapedLink, asked: dict[str, Any], layers: bool, repeats: int) -> list[dict[str, float]]:
    with owner(link, (asked["hit"] + -(-asked["tokens"] // PAGE_TOKENS)) * BLOCK_BYTES) as (descriptor, _):
        wanted = asked | {"descriptor": descriptor, "layers": layers, "repeats": 1 + repeats, "threads": 1}
        command = link.near_command(sys.executable, "-m", "bench.engine.prefill", json.dumps(wanted))
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=240)
    return [json.loads(line) for line in done.stdout.splitlines()][1:]  # the first warms


def median(rows: list[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def measure(asked: dict[str, Any], repeats: int) -> dict[str, Any]:
    with shaped_link(FAST_MEGABITS) as link:
        compute_s = median(prefills(link, asked, False, 2), "step_s")
    megabits = asked["hit"] * BLOCK_BYTES * 8 / compute_s / 1e6
    with shaped_link(megabits) as link:
        reference = prefills(link, asked, False, repeats)
        layered = prefills(link, asked, True, repeats)
    load_s, compute_s = median(reference, "before_step_s"), median(reference, "step_s")
    longer, total_s = max(load_s, compute_s), median(layered, "total_s")
    return {
        "engine": asked["engine"], "link_megabits": round(megabits), "hit_bytes": asked["hit"] * BLOCK_BYTES,
        "load_s": round(load_s, 3), "compute_s": round(compute_s, 3),
        "one_after_the_other_s": round(median(reference, "total_s"), 3), "by_layers_s": round(total_s, 3),
        "by_layers_each_s": [round(row["total_s"], 3) for row in layered],
        "of_longer": round(total_s / longer, 3), "reference_of_longer": round(median(reference, "total_s") / longer, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hit", type=int, default=32, help="blocks of 64 tokens")
    parser.add_argument("--tokens", type=int, default=256, help="to compute")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engines", nargs="+", default=["torch", "synthetic"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = machine()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.json"
        model.write_text(json.dumps({**SHAPE, "prefill": {"step_s": SYNTHETIC_S}, "decode": {"step_s": 0.01}}))
        rows = []
        for engine in options.engines:
            asked = {"engine": engine, "hit": options.hit, "tokens": options.tokens}
            asked["synthetic_model"] = str(model) if engine == "synthetic" else ""
            rows.append(measure(asked, options.repeats))
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({**found, "tokens": options.tokens, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
