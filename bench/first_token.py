"""Where the time of one request alone goes, from its bytes to its first token, beside the engine's own part.

Starts a mesh with the synthetic engine and sends one request after the other. First without traces: the time to the
first token at the client. Then with traces: the stages. Traces cost time of their own, so the stages together are
longer. CPU is what all services took, a request, and so are the times that their threads waited for something.

    python -m bench.first_token [--repeats 300] [--prompt-tokens 1000] [--prefill-ms 20] [--kind chat] [--json FILE]
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.common.readings import quantile
from services.cli.load import cpu
from services.cli.mesh import run_folder

WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not")
DECODE_RATE = 235.0
"""Tokens/s: 4.25 ms a step, as on an H200."""
WARM_UP = 20

STAGES = {
    "client to gateway": ("sent", "arrived"),
    "gateway: parse, admit": ("arrived", "submitted"),
    "session up": ("submitted", "tokenize"),
    "tokenize": ("tokenize", "tokenized"),
    "keys, lookup, schedule": ("tokenized", "scheduled"),
    "ring submit": ("scheduled", "published"),
    "engine: claim, prefill": ("published", "token"),
    "reader's poll": ("token", "seen"),
    "session down": ("seen", "heard"),
    "first event to client": ("heard", "came"),
}
REST = "all but the engine's"
TRACED = {
    "HOSTLESS_TRACE_FILE": "",
    # Spans are written when the services end.
    "OTEL_BSP_SCHEDULE_DELAY": "3600000",
    "OTEL_BSP_MAX_QUEUE_SIZE": "1000000",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1000000",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--prefill-ms", type=float, default=20.0)
    parser.add_argument("--kind", choices=("chat", "text", "ids"), default="chat")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        options.inside.write_text(json.dumps(inside(options)))
        return
    begun = os.getloadavg()[0]
    whole = mesh(options, {})
    with tempfile.TemporaryDirectory() as folder:
        spans = Path(folder) / "spans"
        traced = mesh(options, {**TRACED, "HOSTLESS_TRACE_FILE": str(spans)})
        stages = stages_of(traced["requests"], spans)
    ttft = [1e-6 * (request["came"] - request["sent"]) for request in whole["requests"]]
    result = {
        "repeats": options.repeats,
        "prompt_tokens": options.prompt_tokens,
        "prefill_ms": options.prefill_ms,
        "kind": options.kind,
        "load_average": [round(begun, 1), round(os.getloadavg()[0], 1)],
        "ttft_ms": quantiles(ttft),
        "cpu_ms_a_request": {name: round(1e3 * s / options.repeats, 2) for name, s in whole["cpu_s"].items()},
        "waits_a_request": {name: round(n / options.repeats, 1) for name, n in whole["switches"].items()},
        "stages_ms": {name: quantiles(values) for name, values in stages.items()},
    }
    print_table(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def mesh(options: argparse.Namespace, environment: dict[str, str]) -> dict[str, Any]:
    """What `inside` found in a mesh that lived for it alone."""
    hostless = str(Path(sys.executable).with_name("hostless"))
    rate = options.prompt_tokens / max(options.prefill_ms, 0.001) * 1e3
    with tempfile.NamedTemporaryFile() as file:
        me = [sys.executable, "-m", "bench.first_token", *sys.argv[1:], "--inside", file.name]
        up = [hostless, "up", "--port", "0", "--engine", "synthetic", "--rate", f"{DECODE_RATE:g}", "--", *me]
        engine = {"HOSTLESS_GPU_BACKEND_SYNTHETIC_PREFILL_TOKENS_PER_S": f"{rate:g}"}
        subprocess.run(up, check=True, env={**os.environ, **engine, **environment})
        found: dict[str, Any] = json.load(file)
    return found


def inside(options: argparse.Namespace) -> dict[str, Any]:
    found = run_folder.find(os.environ["HOSTLESS_URL"])
    assert found is not None
    rng = random.Random()  # other prompts than in the run before, whose blocks are stored
    client = Client(found.url, "/v1/chat/completions" if options.kind == "chat" else "/v1/completions")
    for i in range(WARM_UP):
        client.ask(body(options, rng), i)
    before, hops_before = cpu.seconds(found), switches(found)
    requests = []
    for i in range(options.repeats):
        requests.append(client.ask(body(options, rng), WARM_UP + i))
        time.sleep(rng.uniform(0.01, 0.03))  # what the last one leaves to do; no fixed beat against the polls
    hops = {name: count - hops_before[name] for name, count in switches(found).items()}
    return {"requests": requests, "cpu_s": cpu.between(before, cpu.seconds(found)), "switches": hops}


def switches(mesh: run_folder.Mesh) -> dict[str, int]:
    """How often threads of each service waited for something: what other work on the machine changes little."""
    counts = {}
    for service in mesh.services:
        files = Path(f"/proc/{service.pid}/task").glob("*/status")
        counts[service.name] = sum(
            int(file.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for file in files
        )
    return counts


def body(options: argparse.Namespace, rng: random.Random) -> bytes:
    """A prompt that no other request began like: nothing of it is stored."""
    n = options.prompt_tokens
    asked: dict[str, Any] = {"model": "SmolLM2-135M-Instruct", "max_tokens": 4, "stream": True, "ignore_eos": True}
    if options.kind == "ids":
        asked["prompt"] = [rng.randrange(100, 40_000) for _ in range(n)]
    else:
        text = f"{rng.random()} " + " ".join(rng.choices(WORDS, k=n - 30))
        asked |= {"messages": [{"role": "user", "content": text}]} if options.kind == "chat" else {"prompt": text}
    return json.dumps(asked).encode()


class Client:
    """One connection kept alive, with next to no work of its own."""

    def __init__(self, url: str, path: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"

    def ask(self, body: bytes, number: int) -> dict[str, int]:
        """Unix ns when it was sent and when its first text came."""
        trace = f"{number + 1:032x}"
        head = f"{self._head}traceparent: 00-{trace}-0000000000000001-01\r\nContent-Length: {len(body)}\r\n\r\n"
        sent = time.time_ns()
        self._socket.sendall(head.encode() + body)
        came, answer = 0, b""
        while b"data: [DONE]" not in answer or not answer.endswith(b"0\r\n\r\n"):
            piece = self._socket.recv(1 << 16)
            now = time.time_ns()
            if not piece:
                raise SystemExit(f"the gateway closed the connection after {answer!r}")
            answer += piece
            if not came and (b'"text":"' in answer or b'"content":"' in answer.replace(b'"content":""', b"")):
                came = now
        if not came:
            raise SystemExit(f"no text came: {answer!r}")
        return {"trace": number + 1, "sent": sent, "came": came}


def stages_of(requests: Sequence[dict[str, int]], file: Path) -> dict[str, list[float]]:
    """Milliseconds of each stage, a request."""
    spans: dict[int, dict[str, Any]] = {}
    for line in file.read_text().splitlines():
        span = json.loads(line)
        spans.setdefault(int(span["context"]["trace_id"], 16), {}).setdefault(kind(span), span)
    stages: dict[str, list[float]] = {name: [] for name in (*STAGES, REST)}
    for request in requests:
        at = request | moments(spans[request["trace"]])
        for name, (begin, end) in STAGES.items():
            stages[name].append(1e-6 * (at[end] - at[begin]))
        stages[REST].append(1e-6 * (at["came"] - at["token"] + at["published"] - at["sent"]))
    return stages


def kind(span: dict[str, Any]) -> str:
    """Its name, and whose it is: the gateway and the engine both have a queue."""
    service = span["resource"]["attributes"]["service.name"].removeprefix("hostless-")
    return f"{service} {span['name']}"


def moments(spans: dict[str, Any]) -> dict[str, int]:
    def begin(name: str) -> int:
        return unix_ns(spans[name]["start_time"])

    def end(name: str) -> int:
        return unix_ns(spans[name]["end_time"])

    root = next(spans[name] for name in ("gateway chat.completions", "gateway completions") if name in spans)
    arrived = unix_ns(root["start_time"])
    return {
        "arrived": arrived,
        "submitted": end("gateway queue"),
        "tokenize": begin("tokenizer tokenize"),
        "tokenized": end("tokenizer tokenize"),
        "scheduled": end("tokenizer schedule"),
        "published": end("tokenizer ring submit"),
        "token": begin("tokenizer notice"),
        "seen": end("tokenizer notice"),
        "heard": arrived + int(1e9 * root["attributes"]["first_token_s"]),
    }


def unix_ns(text: str) -> int:
    """Of the exporter's ISO time, which has microseconds."""
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1e6) * 1000


def quantiles(values: Sequence[float]) -> dict[str, float]:
    shares = {"p10": 0.1, "p50": 0.5, "p99": 0.99}
    at_rank = {name: round(quantile(values, share), 3) for name, share in shares.items()}
    return at_rank | {"mean": round(statistics.fmean(values), 3)}


def print_table(result: dict[str, Any]) -> None:
    print(f"{'':<26}{'p10':>9}{'p50':>9}{'p99':>9}{'mean':>9}   ms; load average {result['load_average']}")
    rows = {"first token, untraced": result["ttft_ms"], **result["stages_ms"]}
    for name, row in rows.items():
        print(f"{name:<26}" + "".join(f"{row[q]:9.3f}" for q in ("p10", "p50", "p99", "mean")))
    print("waits of threads a request: " + ", ".join(f"{name} {n}" for name, n in result["waits_a_request"].items()))
    print("CPU ms a request: " + ", ".join(f"{name} {ms}" for name, ms in result["cpu_ms_a_request"].items()))


if __name__ == "__main__":
    main()
