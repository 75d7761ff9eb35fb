"""Encoding within the mesh: how long it takes in a request, and whether other streams feel a huge prompt.

First requests of 1,000 tokens, one after the other: after each the tokenizer's metric tells what chat template and
encoding took, the wait for a thread included. Then streams run, and meanwhile prompts of 200,000 characters are sent,
which the engine then refuses, being longer than its context; the streams' inter-token latencies from sending to
answer are compared with those of the rest of the time.

    hostless up --port 0 --engine synthetic --rate 70 --no-kvstore -- python -m bench.tokenizer_mesh [--json FILE]
"""

import argparse
import asyncio
import json
import os
import re
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common.readings import metrics_page, quantile
from bench.encoders import texts
from services.cli.load.client import Timeline, send
from services.cli.load.connection import Connections, Target
from services.cli.mesh import run_folder

CHARACTERS_A_TOKEN = 3.5
HUGE_CHARACTERS = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--huge", type=int, default=8, help="prompts of 200,000 characters")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mesh = run_folder.find(os.environ.get("HOSTLESS_URL", ""))
    tokenizer = mesh.service("tokenizer") if mesh else None
    if mesh is None or tokenizer is None:
        raise SystemExit("no mesh runs here: start this through `hostless up -- python -m bench.tokenizer_mesh`")
    with urllib.request.urlopen(f"{mesh.url}/v1/models", timeout=5) as reply:
        model = json.load(reply)["data"][0]["id"]
    result = asyncio.run(measure(options, f"{mesh.url}/v1/completions", model, tokenizer.metrics))
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


async def measure(options: argparse.Namespace, url: str, model: str, metrics: str) -> dict[str, Any]:
    connections = Connections(Target(url))
    try:
        return {
            "tokenize": await tokenize(connections, model, metrics, options.requests),
            "streams": await beside_huge_prompts(connections, model, options),
        }
    finally:
        connections.close()


def body(model: str, prompt: str, tokens: int) -> bytes:
    usage = {"include_usage": True}
    return json.dumps(
        {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, "stream_options": usage}
    ).encode()


async def tokenize(connections: Connections, model: str, metrics: str, requests: int) -> dict[str, Any]:
    characters = round(1000 * CHARACTERS_A_TOKEN)
    prompts = [text for kind in ("english", "code") for text in texts.slices(kind, characters, requests // 2, 3)]
    milliseconds, tokens = [], []
    for prompt in prompts:
        before = encode_seconds(metrics)
        timeline = await send(connections, body(model, prompt, 1))
        if timeline.error:
            raise SystemExit(timeline.error)
        milliseconds.append(1e3 * (encode_seconds(metrics) - before))
        tokens.append(timeline.prompt_tokens)
    return {"requests": len(prompts), "tokens_median": round(quantile(tokens, 0.5), 3), **quantiles("ms", milliseconds)}


def encode_seconds(metrics: str) -> float:
    found = re.search(r"^hostless:tokenizer_encode_seconds_sum (\S+)", metrics_page(metrics), re.M)
    assert found is not None
    return float(found[1])


async def beside_huge_prompts(connections: Connections, model: str, options: argparse.Namespace) -> dict[str, Any]:
    prompts = texts.slices("english", 200, options.streams, 5)
    huge: list[tuple[float, float]] = []
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(send(connections, body(model, prompt, options.tokens))) for prompt in prompts]
        for prompt in texts.slices("mixed", HUGE_CHARACTERS, options.huge, 9):
            await asyncio.sleep(0.7)
            sent = time.perf_counter()
            answer = await send(connections, body(model, prompt, 1))
            huge.append((sent, time.perf_counter()))
            took_ms = 1e3 * (huge[-1][1] - sent)
            print(f"{HUGE_CHARACTERS} characters: {answer.error[:100] or 'served'} after {took_ms:.0f} ms")
    timelines = [stream.result() for stream in streams]
    for timeline in timelines:
        if timeline.error:
            raise SystemExit(timeline.error)
    during, otherwise = latencies(timelines, huge)
    return {
        "streams": options.streams,
        "answered_ms_median": round(quantile([1e3 * (end - begin) for begin, end in huge], 0.5), 3),
        "itl_meanwhile": quantiles("ms", during),
        "itl_otherwise": quantiles("ms", otherwise),
    }


def latencies(timelines: Sequence[Timeline], huge: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Milliseconds between a stream's events, those that a huge prompt's time overlaps, and the others."""
    during: list[float] = []
    otherwise: list[float] = []
    for timeline in timelines:
        for before, after in zip(timeline.stamps, timeline.stamps[1:], strict=False):
            overlaps = any(begin < after and before < end for begin, end in huge)
            (during if overlaps else otherwise).append(1e3 * (after - before))
    return during, otherwise


def quantiles(unit: str, values: Sequence[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {f"{name}_{unit}": round(quantile(values, share), 3) for name, share in shares.items()}


if __name__ == "__main__":
    main()
