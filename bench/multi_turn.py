"""What the KV store saves: time to first token of a conversation's second turn, against the same prompt cold.

Every repetition is a new conversation, so nothing is hit but its own first turn; the cold prompt differs from
the first token on. Prints prompt, cached and computed tokens, and both times.

    hostless up --port 0 -- python -m bench.multi_turn [--tokens 2000] [--repetitions 5] [--json FILE]
"""

import argparse
import json
import os
import statistics
import time
import urllib.request
from pathlib import Path
from typing import Any

Messages = list[dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000, help="length of the first turn, roughly")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    url = os.environ["HOSTLESS_URL"]
    rows = []
    print(f"{'prompt':>8} {'cached':>8} {'computed':>9} {'turn 2 ms':>10} {'cold ms':>9} {'ratio':>6}")
    for repetition in range(options.repetitions):
        turns = conversation(f"warm {repetition}", options.tokens)
        _, answer, _ = ask(url, turns, 16)
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Say that in one word."}]
        time.sleep(1)  # a person reads; the blocks reach the store
        warm_s, _, usage = ask(url, turns, 1)
        twin = conversation(f"cold {repetition}", options.tokens) + turns[1:]
        cold_s, _, _ = ask(url, twin, 1)
        prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        rows.append({"prompt": prompt, "cached": cached, "warm_s": warm_s, "cold_s": cold_s})
        ratio = cold_s / warm_s
        print(f"{prompt:8} {cached:8} {prompt - cached:9} {warm_s * 1e3:10.0f} {cold_s * 1e3:9.0f} {ratio:6.1f}")
    warm, cold = (statistics.median(row[key] for row in rows) for key in ("warm_s", "cold_s"))
    print(f"median: turn 2 {warm * 1e3:.0f} ms, cold {cold * 1e3:.0f} ms, {cold / warm:.1f} times")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def conversation(topic: str, tokens: int) -> Messages:
    """One user turn of about `tokens` tokens that no other topic shares a block with."""
    line = "The keeper of the lighthouse wrote down every ship that passed, its name, its flag and its load. "
    return [{"role": "user", "content": f"{topic}. {line * (tokens // 21)} What did the keeper write down?"}]


def ask(url: str, messages: Messages, max_tokens: int) -> tuple[float, str, dict[str, Any]]:
    """Seconds to the first token, the answer's text and its usage."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True,
            "model": "SmolLM2-135M-Instruct", "stream_options": {"include_usage": True}}  # fmt: skip
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    first, text = 0.0, ""
    usage: dict[str, Any] = {}
    start = time.perf_counter()
    with urllib.request.urlopen(request, timeout=300) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event["choices"]:
                if piece := choice["delta"].get("content"):
                    first = first or time.perf_counter() - start
                    text += piece
            usage = event.get("usage") or usage
    return first, text, usage


if __name__ == "__main__":
    main()
