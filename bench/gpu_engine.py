"""Step times of the CUDA graph engine on one GPU, host-driven: decode and prefill beside the roofline.

    python -m bench.gpu_engine --out times.json [--skinny 8] [--overlap 1] [--layers 32] [--quick]

Llama-3 8B's shape with random weights, bfloat16. A step is a graph replay timed by CUDA events; a row is
the median of many. Roofline: the larger of bytes (weights once, KV once) over 4.3 TB/s, and operations
over 790 TFLOP/s, both measured on an H200.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.gpu_backend.engine import PAGE_TOKENS, StepKind
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.host_driven import HostDrivenGraphEngine
from services.gpu_backend.engines.cuda.settings import CudaSettings
from services.gpu_backend.models.config import ModelConfig
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.models.random_weights import RandomWeights

BYTES_PER_S, FLOPS = 4.3e12, 790e12
PREFILLS = (128, 256, 512, 1000, 1024, 2048)
DECODES = [(batch, context) for batch in (1, 4, 16, 32, 64) for context in (128, 1024, 4096)]


def llama_8b(layers: int) -> Llama:
    config = ModelConfig(
        architecture="llama", layers=layers, hidden=4096, intermediate=14336, heads=32, kv_heads=8, head_dim=128,
        vocab=128_256, max_context=8192, rms_epsilon=1e-5, rope_theta=500_000.0,
    )  # fmt: skip
    dtype, device = torch.bfloat16, torch.device("cuda")
    return Llama(RandomWeights(config, dtype, device), dtype, device, lambda name, elements: None)


def roofline_ms(config: ModelConfig, *, tokens: int, sampled: int, kv_tokens: int) -> float:
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    layers = config.layers * (attention + 3 * config.hidden * config.intermediate)
    head = config.vocab * config.hidden
    kv = kv_tokens * config.layers * 2 * config.kv_heads * config.head_dim * 2
    return 1e3 * max((2 * (layers + head) + kv) / BYTES_PER_S, 2 * (layers * tokens + head * sampled) / FLOPS)


class Bench:
    def __init__(self, engine: CudaGraphEngine, driven: HostDrivenGraphEngine, pages: int) -> None:
        self._engine, self._driven = engine, driven
        self._pages = np.random.default_rng(0).permutation(pages).astype(np.uint32)
        self._rng = np.random.default_rng(1)

    def decode(self, batch: int, context: int, temperature: float = 0.0) -> dict[str, Any]:
        own, config = self._driven.own, self._engine.geometry
        width = -(-(context + 1) // PAGE_TOKENS)
        own.block_tables[:batch, :width] = np.resize(self._pages, batch * width).reshape(batch, width)
        q = own.sequences
        q["token_count"] = 0
        q["lane"][:batch] = q["token_begin"][:batch] = np.arange(batch)
        q["token_count"][:batch], q["sample"][:batch], q["position"][:batch] = 1, 1, context
        q["temperature"][:batch], q["top_p"][:batch], q["uniform"][:batch] = temperature, 0.95, 0.4
        own.tokens[:batch] = self._rng.integers(0, config.vocab, batch)
        return self._time(StepKind.DECODE, batch, batch)

    def prefill(self, tokens: int) -> dict[str, Any]:
        own = self._driven.own
        width = -(-tokens // PAGE_TOKENS)
        own.block_tables[0, :width] = self._pages[:width]
        q = own.sequences
        q["token_count"] = 0
        q[0]["lane"] = q[0]["token_begin"] = q[0]["position"] = q[0]["temperature"] = 0
        q[0]["token_count"], q[0]["sample"] = tokens, 1
        own.tokens[:tokens] = self._rng.integers(0, self._engine.geometry.vocab, tokens)
        return self._time(StepKind.PREFILL, tokens, 1)

    def _time(self, kind: StepKind, size: int, sequences: int) -> dict[str, Any]:
        own = self._driven.own
        own.header["step"] += 1
        own.header["error"], own.header["sequence_count"], own.header["token_count"] = 0, sequences, size
        self._driven.launch(kind, size)
        assert own.header["error"][0] == 0, "the step failed"
        shape = next(each for each in self._engine.graph_sizes(kind) if each >= size)
        graph = self._driven.graph(kind, shape)
        times = []
        for _ in range(3):
            graph.replay()
        for _ in range(30):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            times.append((begin, end))
        torch.cuda.synchronize()
        spans = [begin.elapsed_time(end) for begin, end in times]
        return {"shape": shape, "median_ms": statistics.median(spans), "worst_ms": max(spans)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--skinny", type=int, nargs="+", default=[CudaSettings().skinny_rows])
    parser.add_argument("--overlap", type=int, nargs="+", default=[1], help="1: programmatic dependent launch; 0: not")
    parser.add_argument("--quick", action="store_true", help="a few rows only")
    options = parser.parse_args()
    model = llama_8b(options.layers)
    results: list[dict[str, Any]] = []
    decodes = [(1, 1024), (4, 1024), (16, 1024), (32, 1024)] if options.quick else DECODES
    variants = [(skinny, bool(overlap)) for skinny in options.skinny for overlap in options.overlap]
    for number, (skinny, overlap) in enumerate(variants):
        prefills = () if number else PREFILLS
        settings = CudaSettings(
            skinny_rows=skinny, overlap_launches=overlap, decode_sizes=(1, 4, 16, 32, 64),
            prefill_sizes=prefills or (64,),
        )  # fmt: skip
        engine = CudaGraphEngine(model, "random", settings)
        driven = HostDrivenGraphEngine(engine, 8192)
        began = time.monotonic()
        pages = 64 * (4096 // PAGE_TOKENS + 1)
        driven.allocate(pages, 64, max(settings.prefill_sizes))
        print(
            f"skinny {skinny} overlap {overlap}: captured in {time.monotonic() - began:.1f} s", engine.memory_report()
        )
        bench = Bench(engine, driven, pages)
        variant = {"skinny_rows": skinny, "overlap": overlap, "layers": options.layers}
        for batch, context in decodes:
            floor = roofline_ms(model.config, tokens=batch, sampled=batch, kv_tokens=batch * (context + 1))
            results.append(variant | {"kind": "decode", "batch": batch, "context": context, "roofline_ms": floor})
            results[-1] |= bench.decode(batch, context)
        sampled = bench.decode(16, 1024, temperature=0.8)
        results.append(variant | {"kind": "decode, sampled", "batch": 16, "context": 1024, "roofline_ms": 0} | sampled)
        for tokens in prefills:
            floor = roofline_ms(model.config, tokens=tokens, sampled=1, kv_tokens=tokens)
            results.append(
                variant | {"kind": "prefill", "tokens": tokens, "roofline_ms": floor} | bench.prefill(tokens)
            )
        driven.close()
        for row in results:
            if row["skinny_rows"] == skinny and row["overlap"] == overlap:
                what = f"{row['kind']} {row.get('batch', row.get('tokens'))} x {row.get('context', 1)}"
                print(
                    f"{what:26} {row['median_ms']:8.3f} ms  worst {row['worst_ms']:8.3f}  "
                    f"floor {row['roofline_ms']:7.3f}"
                )
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "when": time.strftime("%Y-%m-%d")}
    options.out.write_text(json.dumps({"machine": machine, "steps": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
