"""The products of a Llama-3 8B step by algorithm, with the whole GPU and with one multiprocessor taken.

    python -m bench.gpu_matmul OUT.json [--rows 16 32 64 512 1024] [--layers 32]

First whole graphs (prefill, decode) in both conditions, and prefill's and decode's kernels by name; then every
product by torch and by cuBLASLt's candidates. Weights are taken in turn, so that none is in the cache.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.gpu_engine import Bench, llama_8b
from services.gpu_backend.engine import StepKind
from services.gpu_backend.engines.cuda.cublas_lt import Product
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.host_driven import HostDrivenGraphEngine
from services.gpu_backend.engines.cuda.lodger import Lodger
from services.gpu_backend.engines.cuda.settings import CudaSettings

SHAPES = {"qkv": (6144, 4096, False), "output": (4096, 4096, True), "gate_up": (28672, 4096, False),
          "down": (4096, 14336, True), "head": (128256, 4096, False)}  # fmt: skip
STREAM: Any = None


def replays(graph: torch.cuda.CUDAGraph, times: int, each: int) -> float:
    """Median microseconds of one of `each` parts, over `times` replays."""
    with torch.cuda.stream(STREAM):
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)]
        graph.replay()
        for begin, end in events:
            begin.record(STREAM)
            graph.replay()
            end.record(STREAM)
        STREAM.synchronize()
    return 1e3 * statistics.median(begin.elapsed_time(end) for begin, end in events) / each


def captured(run: Callable[[int], None], each: int) -> torch.cuda.CUDAGraph:
    with torch.cuda.stream(STREAM):
        run(0)
    STREAM.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=STREAM):
        for i in range(each):
            run(i)
    with torch.cuda.stream(STREAM):
        graph.replay()
    STREAM.synchronize()
    return graph


def kernels(engine: CudaGraphEngine, driven: HostDrivenGraphEngine, kind: StepKind, size: int) -> list[Any]:
    """By name: times launched, microseconds in all, grids."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            engine.run(kind, size, driven.own.memory)
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(list)
    grids: dict[str, set[str]] = defaultdict(set)
    path = Path("/tmp/trace.json")
    seen.export_chrome_trace(str(path))
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") == "kernel":
            name = event["name"][:110]
            found[name].append(event["dur"])
            about = event["args"]
            grids[name].add(f"{about.get('grid')} x {about.get('block')} {about.get('shared memory')}")
    table = [
        {"name": name, "count": len(us) // 3, "us": round(sum(us) / 3, 1), "median": round(statistics.median(us), 2),
         "grids": sorted(grids[name])[:4]}
        for name, us in found.items()
    ]  # fmt: skip
    return sorted(table, key=lambda row: -row["us"])


def whole(layers: int) -> dict[str, Any]:
    model = llama_8b(layers)
    sizes = CudaSettings(decode_sizes=(1, 4, 8, 16, 32, 64), prefill_sizes=(128, 256, 512, 768, 1024))
    engine = CudaGraphEngine(model, "random", sizes)
    driven = HostDrivenGraphEngine(engine, 8192)
    driven.allocate(64 * 20, 64, 1024)
    bench = Bench(engine, driven, 64 * 20)
    rows: dict[str, Any] = {}
    lodger = Lodger(torch.device("cuda"), 20_000)
    for batch, context in ((1, 256), (4, 256), (8, 256), (16, 256), (32, 256), (64, 256)):
        bench.decode(batch, context)
        graph = driven.graph(StepKind.DECODE, batch)
        alone = replays(graph, 20, 1)
        with lodger:
            lodged = replays(graph, 20, 1)
        rows[f"decode {batch} x {context}"] = [round(alone, 1), round(lodged, 1)]
    for tokens in (128, 256, 512, 768, 1024):
        bench.prefill(tokens - 20)
        graph = driven.graph(StepKind.PREFILL, tokens)
        alone = replays(graph, 8, 1)
        with lodger:
            lodged = replays(graph, 8, 1)
        rows[f"prefill {tokens - 20}"] = [round(alone, 1), round(lodged, 1)]
    bench.decode(16, 256)
    rows["kernels, decode 16"] = kernels(engine, driven, StepKind.DECODE, 16)
    bench.decode(1, 256)
    rows["kernels, decode 1"] = kernels(engine, driven, StepKind.DECODE, 1)
    bench.prefill(1000)
    rows["kernels, prefill 1024"] = kernels(engine, driven, StepKind.PREFILL, 1024)
    driven.close()
    return rows


def products(rows_wanted: list[int], candidates: int) -> dict[str, Any]:
    lodger = Lodger(torch.device("cuda"), 20_000)
    result: dict[str, Any] = {}
    for name, (n, k, added) in SHAPES.items():
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5 for _ in range(4)]
        for rows in rows_wanted:
            if name == "head" and rows > 64:
                continue
            x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
            out = torch.zeros(rows, n, device="cuda", dtype=torch.bfloat16)
            exact = x.float() @ weights[0].float().t()
            product = Product(rows, n, k, torch.bfloat16, added=added)

            def by_torch(i: int, x: Any = x, weights: Any = weights, out: Any = out, added: bool = added) -> None:
                weight = weights[i % 4].t()
                out.addmm_(x, weight) if added else torch.mm(x, weight, out=out)

            ways: list[tuple[str, Callable[[int], None]]] = [("torch", by_torch)]
            known: set[Any] = set()
            for processors in (0, 131, 130, 128):
                for number, algorithm in enumerate(product.algorithms(candidates, processors)):
                    if algorithm.words in known:
                        continue
                    known.add(algorithm.words)

                    def by_lt(
                        i: int, a: Any = algorithm, p: Any = product, x: Any = x, weights: Any = weights, out: Any = out
                    ) -> None:
                        p.run(a, x, weights[i % 4], out)

                    ways.append((f"lt {processors} {number}", by_lt))
            table: list[list[Any]] = []
            for way, run in ways:
                out.zero_()
                torch.cuda.synchronize()
                try:
                    graph = captured(run, 8)
                    out.zero_()
                    torch.cuda.synchronize()
                    with torch.cuda.stream(STREAM):
                        run(0)
                    STREAM.synchronize()
                except Exception as error:
                    table.append([way, repr(error)[:100]])
                    torch.cuda.synchronize()
                    continue
                off = float((out.float() - exact).norm() / exact.norm())
                alone = replays(graph, 5, 8)
                with lodger:
                    lodged = replays(graph, 5, 8)
                table.append([way, round(alone, 2), round(lodged, 2), round(off, 5)])
                del graph
            timed = [row for row in table if len(row) == 4]
            timed.sort(key=lambda row: row[2])
            floor = 1e6 * max(2 * n * k / 4.3e12, 2 * rows * n * k / 790e12)
            print(name, rows, f"floor {floor:.1f}", "torch", table[0][1:], "best lodged", timed[:2], flush=True)
            result[f"{name} {rows}"] = {"floor": round(floor, 2), "ways": table}
    return result


def main() -> None:
    global STREAM
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 32, 64, 512, 1024])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--candidates", type=int, default=8)
    given = parser.parse_args()
    began = time.perf_counter()
    torch.zeros(1, device="cuda")
    STREAM = torch.cuda.Stream()
    found: dict[str, Any] = {"whole": whole(given.layers)}
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, value in found["whole"].items():
        if name.startswith("kernels"):
            print(name)
            for row in value[:14]:
                print("  ", row["us"], row["count"], row["median"], row["name"], row["grids"][:2])
        else:
            print(name, value)
    print(f"{time.perf_counter() - began:.1f} s", flush=True)
    torch.cuda.empty_cache()
    found["products"] = products(given.rows, given.candidates)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
