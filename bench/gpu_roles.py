"""Prefill and decode on a GPU each, against one engine for both: same answers, and what KV traffic does to decodes.

    hostless up --engine cuda --model MODEL --port 0 -- python -m bench.gpu_roles OUT.json unified
    hostless up --engine cuda --model MODEL --port 0 --prefill 1 --decode 1 -- python -m bench.gpu_roles OUT.json apart

Under other names: by blocks, with HOSTLESS_GPU_BACKEND_LAYERWISE=0; from GPU to GPU, with
HOSTLESS_GPU_BACKEND_RECEIVE_BUFFER_MEMORY=device.

Answers are compared one at a time: with others in its batch a sequence's bfloat16 sums are taken in another order.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import threading
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.stream import stream

LENGTHS = (5, 63, 64, 65, 200, 640, 1000, 1500, 2048, 3000)
ANSWER = 48
DECODES, DECODED = 12, 1200
"""Long decodes at once, and their tokens; a few more still fit the same graph, of 16."""
PARTS = ("hand-overs", "answers", "decodes")
HANDED_OVER = (1000, 2000, 8000)
EACH = 7
"""Prompts of each of these lengths, one after the other; the first is not counted."""
TOKEN_BYTES = 128 << 10
"""KV of a token of Llama-3 8B."""
TRAFFIC_TOKENS = 2000
"""Of a prompt that goes from one engine to the other; it gets two tokens, so that its decode is one step."""


def prompt_of(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(100, 32_000) for _ in range(length)]


def decodes(url: str, model: str, traffic: bool) -> dict[str, Any]:
    """Times between the events of long decodes, while prompts are handed over one after the other, or are not."""
    firsts: list[float] = []
    over = threading.Event()

    def decode(number: int) -> list[float]:
        _, stamps = stream(url, model, prompt_of(64, number), DECODED)
        between: list[float] = np.diff(stamps[100:-100]).tolist()
        return between

    def hand_over() -> None:
        for seed in itertools.count(1000):
            if over.is_set():
                return
            firsts.append(stream(url, model, prompt_of(TRAFFIC_TOKENS, seed), 2)[1][0])

    with ThreadPoolExecutor(DECODES + 1) as pool:
        decoding = [pool.submit(decode, number) for number in range(DECODES)]
        other = pool.submit(hand_over) if traffic else None
        try:
            gaps = [gap for each in decoding for gap in each.result()]
        finally:
            over.set()
        if other is not None:
            other.result()
    p50, p99 = np.percentile(gaps, [50, 99])
    mean = statistics.mean(gaps)
    return {
        "gap_ms": {name: round(1e3 * value, 3) for name, value in (("p50", p50), ("p99", p99), ("mean", mean))},
        "gaps": len(gaps), "prompts_handed_over": len(firsts),
        "their_ttft_ms_p50": round(1e3 * statistics.median(firsts), 1) if firsts else None,
    }  # fmt: skip


def hand_overs(url: str, model: str, lengths: Sequence[int]) -> dict[str, Any]:
    """First tokens, and how long after them the second ones come, which the other engine computes: medians."""
    found: dict[str, Any] = {}
    for length in lengths:
        stamps = [stream(url, model, prompt_of(length, 100 * length + number), 3)[1] for number in range(EACH)][1:]
        first = statistics.median(each[0] for each in stamps)
        second = statistics.median(each[1] - each[0] for each in stamps)
        found[str(length)] = {
            "ttft_ms": round(1e3 * first, 1), "second_ms": round(1e3 * second, 1),
            "gb_s": round(length * TOKEN_BYTES / second / 1e9, 1),
        }  # fmt: skip
    return found


def compare(url: str, model: str, found: dict[str, Any], name: str, keep: Callable[[str, Any], None]) -> None:
    """Answers, with those of one engine for both."""
    answers, firsts = [], []
    for number, length in enumerate(LENGTHS):
        text, stamps = stream(url, model, prompt_of(length, number), ANSWER)
        answers.append(text)
        firsts.append(round(1e3 * stamps[0], 1))
    keep("ttft_ms", dict(zip(map(str, LENGTHS), firsts, strict=True)))
    keep("answers", answers)
    if name != "unified" and "unified" in found:
        equal = sum(a == b for a, b in zip(answers, found["unified"]["answers"], strict=True))
        keep("equal", f"{equal} of {len(answers)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("name", help="unified, or any other for engines apart")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=HANDED_OVER, help="of prompts that are handed over")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    given = parser.parse_args()
    url = os.environ["HOSTLESS_URL"]
    with urllib.request.urlopen(url + "/v1/models", timeout=10) as answer:
        model = json.load(answer)["data"][0]["id"]
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    mine = found[given.name] = {}

    def keep(part: str, value: Any) -> None:
        mine[part] = value
        given.out.write_text(json.dumps(found, indent=1) + "\n")
        print(given.name, part, json.dumps(value)[:300], flush=True)

    if "hand-overs" in given.parts:
        keep("hand-overs", hand_overs(url, model, given.lengths))
    if "answers" in given.parts:
        compare(url, model, found, given.name, keep)
    for traffic in (False, True) * (given.repeats if "decodes" in given.parts else 0):
        name = "decodes with KV traffic" if traffic else "decodes alone"
        keep(name, [*mine.get(name, []), decodes(url, model, traffic)])


if __name__ == "__main__":
    main()
