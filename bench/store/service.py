"""The part `service` of bench/kvstore.py: a store in its own process, asked as the mesh asks it.

Lookups of 512 keys, by the lane and by plain gRPC calls; writes by shared memory; reads of whole blocks and of single
layers into a reader's region, by one reader and by four. CPU is the store's process alone.
"""

import argparse
import json
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import uvloop

from bench.common.child import end
from bench.common.readings import cpu_s, quantile
from hostless.v1 import kvstore_pb2 as pb
from hostless.v1 import kvstore_pb2_grpc
from services.cli.kv.load import KvLoad, Rate, run
from services.kvstore._index import BlockIndex
from services.kvstore.client import StoreClient

ENGINES = ("local", "files")
KEYS, LOOKUPS, WARM_UP = 512, 5000, 200
BLOCKS = {"256 KiB": 256 << 10, "4 MiB": 4 << 20}
INDEXED = 1_000_000


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = {"index": _index()}
    for engine in ENGINES:
        with _store(folder / engine, engine, 2 * options.bytes) as (port, process):
            results[engine] = uvloop.run(_service(f"127.0.0.1:{port}", process.pid, options))
    print(json.dumps(results, indent=1))
    return results


@contextmanager
def _store(folder: Path, engine: str, capacity: int) -> Any:
    command = [sys.executable, "-m", "services.kvstore", "--address=127.0.0.1:0", "--metrics-address="]
    command += [f"--engine={engine}", f"--path={folder}", f"--capacity-bytes={capacity}", "--read-threads=4"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if '"serving"' in line:
                break
        yield json.loads(line)["port"], process
    finally:
        process.terminate()
        end(process)
        shutil.rmtree(folder)


async def _service(address: str, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    async with StoreClient(address) as client:
        await run(client, KvLoad(KEYS, 4096, 1, KEYS, 1, 1, 1), lambda _: None)  # keys to find
        keys = [block.key async for block in client.blocks()]
        order = {block.key: block.position async for block in client.blocks()}
        keys.sort(key=order.__getitem__)
        results["lookup_us"] = {
            "lane": _percentiles(await _times(lambda: client.lookup(keys))),
            "lane, leased": _percentiles(await _leased(client, keys)),
            "call": _percentiles(await _calls(address, keys)),
        }
        for name, size in BLOCKS.items():
            blocks = max(8, options.bytes // 4 // size)
            for readers in (1, 4):
                load = KvLoad(blocks, size, 1, 1, 32, readers, max(1, options.repeats))
                before = cpu_s(pid)
                figures = await run(client, load, lambda _: None)
                moved = figures.write.bytes + figures.read.bytes + figures.layer_read.bytes
                results[f"{name}, readers {readers}"] = {
                    "write_gb_s": _gb_s(figures.write),
                    "read_gb_s": _gb_s(figures.read),
                    "layer_gb_s": _gb_s(figures.layer_read),
                    "layer_us": _percentiles(figures.layer_read.latencies_s),
                    "cpu_s_per_gb": round((cpu_s(pid) - before) / moved * 1e9, 3),
                }
    return results


async def _times(work: Callable[[], Any]) -> list[float]:
    times = []
    for _ in range(WARM_UP + LOOKUPS):
        begun = time.perf_counter()
        await work()
        times.append(time.perf_counter() - begun)
    return times[WARM_UP:]


async def _leased(client: StoreClient, keys: list[bytes]) -> list[float]:
    """The release is not timed: nobody waits for it."""
    times = []
    for _ in range(WARM_UP + LOOKUPS):
        begun = time.perf_counter()
        hit = await client.lookup(keys, 5.0)
        times.append(time.perf_counter() - begun)
        await client.release(hit.lease_id)
    return times[WARM_UP:]


async def _calls(address: str, keys: list[bytes]) -> list[float]:
    async with grpc.aio.insecure_channel(address) as channel:
        lookup, request = kvstore_pb2_grpc.KvStoreStub(channel).Lookup, pb.LookupRequest(keys=b"".join(keys))
        return await _times(lambda: lookup(request))


def _index() -> dict[str, Any]:
    """A million blocks in the index, in chains of 1000."""
    index, root = BlockIndex(1 << 60, 1 << 60), secrets.token_bytes(16)
    begun = time.perf_counter()
    parent = root
    for number in range(INDEXED):
        if number % 1000 == 0:
            parent = root
        key = secrets.token_bytes(16)
        if number % 1000:
            index.add(key, parent, number % 1000, 4096, 8192)
        else:
            index.add(key, root, 0, 4096, 8192)
        parent = key
    return {
        "blocks": INDEXED,
        "bytes_a_block": round(index.memory / INDEXED, 1),
        "add_us": round((time.perf_counter() - begun) / INDEXED * 1e6, 2),
    }


def _gb_s(rate: Rate) -> float:
    return round(rate.bytes / rate.seconds / 1e9, 3)


def _percentiles(seconds: list[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(quantile(seconds, share) * 1e6, 1) for name, share in shares.items()}
