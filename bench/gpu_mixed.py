"""Steps in which prompts and decodes share, on one GPU: the same tokens, what a step takes, and what clients get of it.

    python -m bench.gpu_mixed OUT.json [--parts correct times load] [--mixed 0 256 512 2048] [--singles tiles beside]

correct: greedy tokens of a small random float32 model by the scheduler on the GPU, and by the overlapped host-driven
loop, against HuggingFace's on the same device; prompts come while others decode, pages run out, chunks are small.
times: graph replays of mixed steps, of their prompts alone and of their decodes alone; Llama-3 8B's shape, bfloat16.
load: an open loop at the ring (bench/gpu/mixed_load.py), the same requests for every setting of `mixed_tokens`.
OUT is written after each row, so that a run that is cut short keeps what it has.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from bench.gpu.mixed_load import Serving
from bench.gpu.requests import requests_of
from bench.gpu_engine import llama_8b
from services.gpu_backend.engine import PAGE_TOKENS, StepKind
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.host_driven import HostDrivenGraphEngine
from services.gpu_backend.engines.cuda.settings import CudaSettings, Singles
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu.engine import huggingface
from tests.gpu.engine.small_models import TensorSource, small_config

Keep = Callable[[str, Any], None]
SINGLES: tuple[Singles, ...] = get_args(Singles)
CASES: dict[str, tuple[list[int], int, float]] = {
    "page edges": ([1, 63, 64, 65, 127, 128, 129], 40, 0.004),
    "32, a few at a time": ([1 + 22 * i for i in range(32)], 40, 0.004),
    "a long one among short": ([30, 40, 4000, 20, 300], 120, 0.002),
    "pages run out": ([320 + 6 * i for i in range(20)], 100, 0.002),
}
"""Tokens of each prompt, tokens of each answer, seconds between two arrivals."""
STEPS = [(256, 16, 1000), (256, 48, 1500), (256, 4, 7000), (512, 16, 1000), (512, 48, 1500), (512, 4, 7000),
         (1024, 48, 1500), (1024, 4, 7000)]  # fmt: skip
"""Tokens of the step, decodes among them, their contexts."""
LANES = 128


def correct(keep: Keep, singles: list[Singles]) -> None:
    config = small_config()
    torch.manual_seed(1)
    reference = huggingface.model_of(config, initializer_range=0.06).to("cuda")
    tensors = {name: tensor.cpu() for name, tensor in reference.state_dict().items()}
    model = Llama(TensorSource(config, tensors), torch.float32, torch.device("cuda"), lambda name, elements: None)
    rng = np.random.default_rng(3)
    prompts = {name: [rng.integers(0, config.vocab, n, np.uint32) for n in case[0]] for name, case in CASES.items()}
    expected = {
        name: [huggingface.greedy(reference, prompt.tolist(), CASES[name][1]) for prompt in prompts[name]]
        for name in CASES
    }
    forms = [("resident", each, mixed) for each in singles for mixed in (40, 128)]
    for form, each, mixed in [("resident", "tiles", 0), *forms, ("host-overlap", singles[-1], 128)]:
        settings = SchedulerSettings(
            lanes=32, step_tokens=512, pages=90, prefill_chunk=128, mixed_tokens=mixed,
            decode_graphs=(1, 4, 16, 32), prefill_graphs=(16, 64, 128, 512),
        )  # fmt: skip
        cuda = CudaSettings(
            singles=each, decode_sizes=settings.decode_graphs, prefill_sizes=settings.prefill_graphs,
            spare_processors=int(form == "resident"),
        )  # fmt: skip
        row: dict[str, Any] = {"wrong_requests": 0, "tokens": 0}
        with Serving(model, cuda, settings, 4352, form) as serving:
            for name, (lengths, count, apart) in CASES.items():
                arrivals = [apart * i for i in range(len(lengths))]
                ran = serving.run(arrivals, prompts[name], [count] * len(lengths))
                row["wrong_requests"] += sum(a != b for a, b in zip(ran.tokens, expected[name], strict=True))
                row["tokens"] += sum(map(len, ran.tokens))
        names = ("prefill_launches", "mixed_launches", "decode_launches", "preemptions", "pauses")
        keep(f"{form}, {each}, mixed {mixed}", row | {name: serving.counters[name] for name in names})


class Times:
    """Replays of steps that are written into engine memory by hand."""

    def __init__(self, model: Llama, singles: Singles) -> None:
        cuda = CudaSettings(singles=singles, decode_sizes=(4, 16, 48, LANES), prefill_sizes=(256, 512, 1024))
        self._engine = CudaGraphEngine(model, "random", cuda)
        self._driven = HostDrivenGraphEngine(self._engine, 8192)
        self._driven.allocate(1800, LANES, 1024)
        self._rng = np.random.default_rng(1)

    def step(self, tokens: int, decodes: int, context: int) -> float:
        """Median ms; tokens 0: a decode step, decodes 0: a prompt alone."""
        own = self._driven.own
        chunk = max(0, tokens - decodes)
        width = context // PAGE_TOKENS + 1
        pages = self._rng.permutation(1800).astype(np.uint32)
        own.sequences[:] = 0
        own.block_tables[:decodes, :width] = np.resize(pages, decodes * width).reshape(decodes, width)
        own.block_tables[decodes, : tokens // PAGE_TOKENS + 1] = pages[: tokens // PAGE_TOKENS + 1]
        q, first = own.sequences, int(chunk > 0)
        q["top_p"], q["sample"], q["token_count"] = 1, 1, 0
        if chunk:
            q["lane"][0], q["token_count"][0] = decodes, chunk
        q["lane"][first : first + decodes] = np.arange(decodes)
        q["token_count"][first : first + decodes], q["position"][first : first + decodes] = 1, context
        q["token_begin"][first : first + decodes] = chunk + np.arange(decodes)
        own.tokens[:] = self._rng.integers(0, self._engine.geometry.vocab, len(own.tokens))
        own.header["step"] += 1
        own.header["error"], own.header["sequence_count"] = 0, first + decodes
        own.header["token_count"] = chunk + decodes
        kind, size = (StepKind.PREFILL, tokens) if tokens else (StepKind.DECODE, decodes)
        self._driven.launch(kind, size)
        assert own.header["error"][0] == 0, "the step failed"
        graph = self._driven.graph(kind, size)
        spans = []
        for _ in range(25):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            spans.append((begin, end))
        torch.cuda.synchronize()
        return round(statistics.median(begin.elapsed_time(end) for begin, end in spans[5:]), 3)

    def close(self) -> None:
        self._driven.close()


def times(keep: Keep, singles: list[Singles], model: Llama) -> None:
    for each in singles:
        bench = Times(model, each)
        row: dict[str, float] = {}
        for tokens, decodes, context in STEPS:
            row[f"{tokens} tokens"] = bench.step(tokens, 0, 0)
            row[f"{decodes} decodes behind {context}"] = bench.step(0, decodes, context)
            row[f"{tokens} tokens, {decodes} of them decodes behind {context}"] = bench.step(tokens, decodes, context)
        keep(each, row)
        bench.close()
        del bench
        release()


def load(keep: Keep, singles: list[Singles], mixed: list[int], rates: list[float], count: int, model: Llama) -> None:
    kinds: list[tuple[int, Singles]] = [(n, each) for n in mixed for each in (singles if n else SINGLES[:1])]
    for tokens, each in kinds:
        begin = time.perf_counter()
        settings = SchedulerSettings(lanes=LANES, step_tokens=2048, pages=6400, mixed_tokens=tokens)
        name = f"mixed {tokens}, {each}"
        with Serving(model, CudaSettings(singles=each), settings, 5184, "resident") as serving:
            serving.run([0.0] * 4, [np.full(600, 7, np.uint32)] * 4, [16] * 4)
            ready = round(time.perf_counter() - begin, 1)
            for rate in rates:
                before = serving.read_counters()
                ran = serving.run(*requests_of(rate, count, model.config.vocab))
                after = serving.read_counters()
                launches = {kind: after[kind] - before[kind] for kind in after if kind.endswith("launches")}
                keep(f"{name}, {rate:g} req/s", ran.summary() | launches | {"ready_s": ready})
        release()


def release() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--parts", nargs="+", choices=("correct", "times", "load"), default=["correct", "times", "load"]
    )
    parser.add_argument("--mixed", nargs="+", type=int, default=[0, 256, 512, 2048])
    parser.add_argument("--singles", nargs="+", choices=SINGLES, default=list(SINGLES), help="`load` takes the first")
    parser.add_argument("--rates", nargs="+", type=float, default=[8.0, 16.0])
    parser.add_argument("--count", type=int, default=96, help="requests of a rate")
    given = parser.parse_args()
    begin = time.perf_counter()
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}

    def keeping(part: str) -> Keep:
        def keep(name: str, value: Any) -> None:
            found.setdefault(part, {})[name], found["total_s"] = value, round(time.perf_counter() - begin, 1)
            given.out.write_text(json.dumps(found, indent=1) + "\n")
            print(part, name, json.dumps(value), f"{found['total_s']} s", flush=True)

        return keep

    if "correct" in given.parts:
        correct(keeping("correct"), given.singles)
        release()
    if {"times", "load"} & set(given.parts):
        model = llama_8b(32)
        if "times" in given.parts:
            times(keeping("times"), given.singles, model)
        if "load" in given.parts:
            load(keeping("load"), given.singles[:1], given.mixed, given.rates, given.count, model)


if __name__ == "__main__":
    main()
