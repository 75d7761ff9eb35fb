"""Greedy tokens of the torch engine against HuggingFace transformers, both float32 on the CPU.

Every prompt runs alone and in batches of 16, over scattered pages and in chunks of odd sizes. Prints a
table and exits 1 on any difference, with the gap between the reference's two highest logits where the
first one is, so that a flipped tie can be told from an error.

    python -m bench.exactness [--only 6] [--tokens 24]
"""

import argparse
import sys
import time
from collections import defaultdict

import numpy as np
import torch

from bench.engine.chats import chats
from bench.engine.reference import Reference
from services.common.paths import models_dir
from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.engines.offline import Run, generate
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.models.registry import load

BATCH = 16
CHUNK_ALONE, CHUNK_BATCH = 509, 193


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--only", type=int, default=0, help="so many prompts, spread over the kinds; 0: all")
    parser.add_argument("--longest", type=int, default=1 << 20, help="leave longer prompts out")
    parser.add_argument("--tokens", type=int, default=24, help="new tokens a prompt")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as many as cores")
    return parser.parse_args()


def spread(total: int, count: int) -> list[int]:
    """Indices of `count` prompts, evenly over all, so that every kind is met."""
    return sorted({round(i * (total - 1) / max(count - 1, 1)) for i in range(count)})


def run_engine(engine: TorchEngine, prompts: list[list[int]], tokens: int, batch: int, chunk: int) -> list[list[int]]:
    """New tokens of each prompt, `batch` at a time; prompts of a batch are far apart in the list."""
    batches = -(-len(prompts) // batch)
    order = [i for first in range(batches) for i in range(first, len(prompts), batches)]
    rng = np.random.default_rng(batch)
    results: dict[int, list[int]] = {}
    for begin in range(0, len(order), batch):
        members = order[begin : begin + batch]
        runs = [Run(prompts[i], tokens) for i in members]
        outputs = generate(engine, runs, chunk, rng.permutation(len(engine.kv_pages)))
        results.update(zip(members, outputs, strict=True))
    return [results[i] for i in range(len(prompts))]


def main() -> int:
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    folder = models_dir() / args.model
    reference = Reference(folder)
    encoded = [(name, reference.encode(chat)) for name, chat in chats()]
    chosen = [(name, prompt) for name, prompt in encoded if len(prompt) <= args.longest]
    if args.only:
        chosen = [chosen[i] for i in spread(len(chosen), args.only)]
    prompts = [prompt for _, prompt in chosen]

    started = time.perf_counter()
    expected = [reference.greedy(prompt, args.tokens) for prompt in prompts]
    print(f"transformers: {len(prompts)} prompts in {time.perf_counter() - started:.1f} s", flush=True)

    engine = TorchEngine(load(folder), TorchSettings())
    longest = max(len(prompt) for prompt in prompts) + args.tokens
    engine.allocate(BATCH * -(-longest // PAGE_TOKENS), BATCH, CHUNK_ALONE)
    found = {}
    for batch, chunk in ((1, CHUNK_ALONE), (BATCH, CHUNK_BATCH)):
        started = time.perf_counter()
        found[batch] = run_engine(engine, prompts, args.tokens, batch, chunk)
        print(f"engine, {batch} at a time: {time.perf_counter() - started:.1f} s", flush=True)

    differences: list[str] = []
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    for i, (name, _) in enumerate(chosen):
        row = table[name.split("-")[0]]
        row[0], row[1], row[2] = row[0] + 1, row[1] + len(prompts[i]), max(row[2], len(prompts[i]))
        tokens, logits = expected[i]
        for column, batch in ((3, 1), (4, BATCH)):
            if found[batch][i] == tokens:
                row[column] += 1
                continue
            at = next(j for j in range(args.tokens) if found[batch][i][j] != tokens[j])
            first, second = logits[at].topk(2).values.tolist()
            differences.append(
                f"{name}, {batch} at a time: token {at} is {found[batch][i][at]}, transformers has {tokens[at]}; "
                f"its two highest logits are {first - second:.2e} apart"
            )
    print(f"{'kind':<8}{'prompts':>8}{'tokens':>9}{'longest':>9}{'equal alone':>13}{'equal by 16':>13}")
    for kind, row in table.items():
        print(f"{kind:<8}{row[0]:>8}{row[1]:>9}{row[2]:>9}{row[3]:>13}{row[4]:>13}")
    gaps = sorted(float(np.diff(row.topk(2).values.flip(0))[0]) for _, logits in expected for row in logits)
    print(f"smallest gap between the reference's two highest logits: {gaps[0]:.2e} of {len(gaps)} tokens")
    print("\n".join(differences) or f"all equal: {len(prompts)} prompts, {args.tokens} new tokens each")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
