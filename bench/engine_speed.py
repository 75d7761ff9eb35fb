"""Decode and prefill tokens/s of the torch engine beside transformers' generate, float32 on the CPU.

Both run in this process, turn by turn, on the same threads. Each figure is the median of the rounds.

    python -m bench.engine_speed [--rounds 3] [--dtype bfloat16]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from bench.engine.reference import Reference
from services.common.paths import models_dir
from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.engines.offline import Offline, Run
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.models.registry import load

CHUNK = 512
Clock = Callable[[], float]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48, help="new tokens a sequence")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as many as cores")
    parser.add_argument("--cpu-time", action="store_true", help="with one thread, on a machine that is busy otherwise")
    args = parser.parse_args()
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time means something with --threads 1 only: waiting threads count as busy")
    return args


def engine_rates(engine: TorchEngine, prompts: list[list[int]], tokens: int, clock: Clock) -> tuple[float, float]:
    """(prefill, decode) tokens/s of all prompts together."""
    offline = Offline(engine, len(prompts), np.random.default_rng(0).permutation(len(engine.kv_pages)))
    runs = [Run(prompt, tokens) for prompt in prompts]
    started = clock()
    for lane, run in enumerate(runs):
        offline.prefill(lane, run, CHUNK)
    prefilled = clock()
    decoded = sum(offline.decode(list(enumerate(runs))))
    ended = clock()
    return sum(map(len, prompts)) / (prefilled - started), decoded / (ended - prefilled)


def transformers_rates(
    reference: Reference, prompts: list[list[int]], tokens: int, clock: Clock
) -> tuple[float, float]:
    """The same of prompts of one length, by generate(); decode time is that of `tokens` less that of one."""
    spent = []
    for count in (1, tokens):
        started = clock()
        with torch.inference_mode():
            ids = torch.tensor(prompts)
            reference.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=2
            )
        spent.append(clock() - started)
    size, length = len(prompts), len(prompts[0])
    return size * length / spent[0], size * (tokens - 1) / (spent[1] - spent[0])


def main() -> None:
    args = arguments()
    clock = time.process_time if args.cpu_time else time.perf_counter
    if args.threads:
        torch.set_num_threads(args.threads)
    folder = models_dir() / args.model
    reference = Reference(folder)
    engine = TorchEngine(load(folder, args.dtype), TorchSettings())
    reference.model.to(getattr(torch, args.dtype))
    shapes = ((1, 128), (16, 128), (1, 1024), (16, 1024))
    most = max(batch * -(-(length + args.tokens) // PAGE_TOKENS) for batch, length in shapes)
    engine.allocate(most, 16, CHUNK)
    rng = np.random.default_rng(1)
    print(f"{args.dtype}, {torch.get_num_threads()} threads; tokens/s of all sequences together")
    print(f"{'batch':>5}{'prompt':>8}{'prefill':>10}{'(transformers)':>16}{'decode':>9}{'(transformers)':>16}")
    for batch, length in shapes:
        prompts = rng.integers(17, 40000, (batch, length)).tolist()
        measures: list[Callable[[], tuple[float, float]]] = [
            lambda prompts=prompts: engine_rates(engine, prompts, args.tokens, clock),  # type: ignore[misc]
            lambda prompts=prompts: transformers_rates(reference, prompts, args.tokens, clock),  # type: ignore[misc]
        ]
        rates = [[measure() for measure in measures] for _ in range(args.rounds)]
        (prefill, decode), (their_prefill, their_decode) = (
            [statistics.median(rate[i][j] for rate in rates) for j in (0, 1)] for i in (0, 1)
        )
        print(
            f"{batch:>5}{length:>8}{prefill:>10.0f}{their_prefill:>16.0f}{decode:>9.1f}{their_decode:>16.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
