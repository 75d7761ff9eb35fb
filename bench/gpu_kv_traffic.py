"""Decode steps on a GPU while KV goes in and out of its memory: what the traffic of hand-overs does to steps.

    python -m bench.gpu_kv_traffic OUT.json [--repeats 3] [--decoded 300] [--blocks 32] [--only NAME ...]

Llama-3 8B's shape, batch 16, the scheduler on the GPU; steps are timed on the GPU, as by gpu_resident. The copies are
the agent's (device/kv_pages.py), of a prompt of 2,048 tokens, over and over as fast as they go, or as fast as named;
`give` and `take` are another process's, on the next GPU where there is one: a prefill engine that writes to this one's
buffers, or reads hits there. Every kind runs in turn, with none before each, so that a clock that drifts shows.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.gpu.requests import prompts_of
from bench.gpu.resident_client import ROOT, Engine, Ran
from bench.gpu_resident import periods, spread

BATCH, PROMPT = 16, 128


@dataclass(frozen=True)
class Traffic:
    kind: str
    by_layers: bool = False
    gb_s: float = 0.0

    @property
    def command(self) -> str:
        return f"traffic {self.kind} {int(self.by_layers)} {self.gb_s * 1e9:.0f}"


TRAFFIC = {
    "host in": Traffic("in"), "host in, layers": Traffic("in", True), "host in, 10 GB/s": Traffic("in", True, 10),
    "host out": Traffic("out"), "host out, layers": Traffic("out", True),
    "buffer to pages": Traffic("near"), "buffer to pages, layers": Traffic("near", True),
    "buffer to pages, 10 GB/s": Traffic("near", True, 10),
    "peer gives, layers": Traffic("give", True), "peer takes, layers": Traffic("take", True),
    "peer gives, 10 GB/s": Traffic("give", True, 10),
}  # fmt: skip


class Peer:
    """A process on another GPU, or on the same one where there is no other."""

    def __init__(self, traffic: list[Any]) -> None:
        blocks, block_bytes, layers, handle = traffic
        gpu = min(1, torch.cuda.device_count() - 1)
        command = [
            sys.executable,
            "-m",
            "bench.gpu.kv_traffic_mover",
            *map(str, (gpu, blocks, block_bytes, layers)),
            handle,
        ]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def traffic(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with {self._process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20)


@contextlib.contextmanager
def beside(mover: Any, traffic: Traffic | None) -> Iterator[dict[str, Any]]:
    told: dict[str, Any] = {}
    if traffic is None:
        yield told
        return
    mover.traffic(traffic.command)
    try:
        time.sleep(0.1)
        yield told
    finally:
        told.update(mover.traffic("quiet"))


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    runs: list[tuple[str, Ran, float]] = []
    with (
        Engine("resident", folder, layers=32, deadline_s=200, traffic_blocks=given.blocks) as engine,
        contextlib.ExitStack() as held,
    ):
        vocab = engine.started["vocab"]
        peer = held.enter_context(contextlib.closing(Peer(engine.started["traffic"])))
        engine.run(prompts_of([PROMPT] * BATCH, vocab, 0), 40)
        for repeat in range(given.repeats):
            for name in given.only or TRAFFIC:
                for what, traffic in (("none", None), (name, TRAFFIC[name])):
                    mover = peer if traffic and traffic.kind in ("give", "take") else engine
                    with beside(mover, traffic) as told:
                        ran = engine.run(prompts_of([PROMPT] * BATCH, vocab, 1 + repeat), given.decoded)
                    runs.append((what, ran, told.get("gb_s", 0.0)))
    us: dict[str, list[Any]] = {}
    rates: dict[str, list[float]] = {}
    for name, ran, rate in runs:
        us.setdefault(name, []).append(periods(engine.stamps, ran, given.decoded))
        rates.setdefault(name, []).append(rate)
    alone = spread(np.concatenate(us["none"]))
    found: dict[str, Any] = {"gpu": engine.started["gpu"], "gpus": torch.cuda.device_count(), "step_us": {}}
    for name, parts in us.items():
        row = spread(np.concatenate(parts))
        more = {f"{key}_percent": round(100 * (row[key] / alone[key] - 1), 2) for key in ("p50", "p99")}
        found["step_us"][name] = row | more | {"gb_s": rates[name]}
    same = [ran.tokens == runs[0][1].tokens for _, ran, _ in runs[: 2 * len(given.only or TRAFFIC)]]
    return found | {"tokens_equal": all(same)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--decoded", type=int, default=300)
    parser.add_argument("--blocks", type=int, default=32, help="of a prompt, 64 tokens each")
    parser.add_argument("--only", nargs="+", choices=list(TRAFFIC), default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found["step_us"].items():
        print(name, json.dumps(row))
    print("tokens equal:", found["tokens_equal"])


if __name__ == "__main__":
    main()
