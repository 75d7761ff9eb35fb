"""How many tokens a second reach clients through gateway and tokenizer, with an engine that costs nothing.

Starts a mesh with the synthetic engine and runs `hostless bench` against it, closed loop, a few times. Prints
tokens/s, the slowest stream's rate against the fastest's, CPU microseconds a token of each service, and gRPC
messages and tokens a poll.

    python -m bench.front_end [--streams 256] [--rate 70] [--tokens 600] [--repetitions 3] [--json FILE]
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.common.readings import metrics_page
from services.cli.mesh import run_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rate", type=float, default=70, help="tokens/s that the engine emits for each stream")
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options)
        return
    hostless = str(Path(sys.executable).with_name("hostless"))
    me = [sys.executable, "-m", "bench.front_end", "--inside", *sys.argv[1:]]
    up = [hostless, "up", "--port", "0", "--engine", "synthetic", "--rate", str(options.rate), "--no-kvstore", "--"]
    raise SystemExit(subprocess.run([*up, *me]).returncode)


def inside(options: argparse.Namespace) -> None:
    results = [once(options) for _ in range(options.repetitions)]
    rates = [result["tokens_per_s"] for result in results]
    print(f"median of {len(rates)}: {statistics.median(rates):.0f} tokens/s to clients")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def once(options: argparse.Namespace) -> dict[str, Any]:
    mesh = run_folder.find(os.environ["HOSTLESS_URL"])
    assert mesh is not None
    tokenizer = mesh.service("tokenizer")
    assert tokenizer is not None
    before = counters(tokenizer.metrics)
    with tempfile.NamedTemporaryFile() as file:
        command = [Path(sys.executable).with_name("hostless"), "bench", "-c", options.streams, "-n", options.streams]
        command += ["--output-tokens", options.tokens, "--prompt-tokens", 32, "--json", file.name]
        subprocess.run([str(word) for word in command], check=True)
        result: dict[str, Any] = json.load(file)
    after = counters(tokenizer.metrics)
    result["tokenizer"] = {name: after[name] - before.get(name, 0.0) for name in after}
    print({name: round(value) for name, value in result["tokenizer"].items()})
    slowest = result["slowest_to_fastest"]
    per_token = {name: 1e6 * seconds / result["completion_tokens"] for name, seconds in result["cpu_s"].items()}
    print(
        f"slowest stream at {slowest:.2f} of the fastest; "
        f"gateway and tokenizer: {front_end_us(per_token):.1f} us of CPU a token"
    )
    return result


def front_end_us(per_token: dict[str, float]) -> float:
    return per_token["gateway"] + per_token["tokenizer"]


def counters(address: str) -> dict[str, float]:
    """Counters of a service's /metrics, without labels."""
    return {
        m[1]: float(m[2]) for m in re.finditer(r"^hostless:tokenizer_(\w+)_total (\S+)$", metrics_page(address), re.M)
    }


if __name__ == "__main__":
    main()
