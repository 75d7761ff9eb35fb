"""Load on a store as a GPU backend's agent makes it: blocks in, chains looked up, blocks and layers out."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from services.common.keys import next_key, root_key
from services.fabric.region import MemoryRegion
from services.fabric.rights import Rights
from services.kvstore.client import Block, StoreClient

LEASE_S = 60.0
WRITE_BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class KvLoad:
    """`blocks` of `block_bytes` in one chain; `lookup_keys` asked at once; `layers` in a block; `readers` at a time."""

    blocks: int
    block_bytes: int
    lookups: int
    lookup_keys: int
    layers: int
    readers: int
    passes: int


@dataclass(frozen=True)
class Rate:
    """So many bytes in so many seconds, by calls that took `latencies_s` each."""

    bytes: int
    seconds: float
    latencies_s: list[float]


@dataclass(frozen=True)
class KvFigures:
    lookup_s: list[float]
    write: Rate
    read: Rate
    layer_read: Rate


async def run(client: StoreClient, load: KvLoad, step: Callable[[str], None]) -> KvFigures:
    """Raises RuntimeError where the store refuses, or gives other bytes than were written."""
    chain = _chain(load)
    data = np.random.default_rng(0).bytes(load.block_bytes)
    step("writing")
    write = await _write(client, chain, data)
    step("looking up")
    keys = [block.key for block in chain]
    asked = (keys * (load.lookup_keys // len(keys) + 1))[: load.lookup_keys] if len(keys) < load.lookup_keys else keys
    asked = asked[: load.lookup_keys]
    lookup_s = [await _timed(lambda: client.lookup(asked, LEASE_S), client) for _ in range(load.lookups)]
    step("reading")
    whole = await _read(client, keys, load, (0, 0), data)
    step("reading layers")
    layer = load.block_bytes // load.layers
    one = await _read(client, keys, load, (layer * (load.layers // 2), layer), data)
    return KvFigures(lookup_s, write, whole, one)


def _chain(load: KvLoad) -> list[Block]:
    parent, chain = root_key("bench", secrets.token_hex(8)), []
    tokens = np.random.default_rng(0).integers(0, 50_000, (load.blocks, 64)).astype("<u4")
    for position in range(load.blocks):
        key = next_key(parent, tokens[position])
        chain.append(Block(key, parent, position, load.block_bytes, tokens[position].tobytes()))
        parent = key
    return chain


async def _write(client: StoreClient, chain: Sequence[Block], data: bytes) -> Rate:
    latencies: list[float] = []
    begun = time.perf_counter()
    at = 0
    while at < len(chain):
        part = chain[at : at + max(1, WRITE_BATCH_BYTES // len(data))]
        start = time.perf_counter()
        async with client.write(part, timeout_s=30) as batch:
            for number in range(len(part)):
                if reason := batch.reason(number):
                    raise RuntimeError(f"the store refused a block: {reason}")
                batch.fill(number, data)
            for reason in await batch.commit():
                if reason:
                    raise RuntimeError(f"the store refused a block: {reason}")
        latencies.append(time.perf_counter() - start)
        at += len(part)
    return Rate(len(chain) * len(data), time.perf_counter() - begun, latencies)


async def _timed(lookup: Callable[[], object], client: StoreClient) -> float:
    start = time.perf_counter()
    hit = await lookup()  # type: ignore[misc]
    took = time.perf_counter() - start
    await client.release(hit.lease_id)
    return took


async def _read(client: StoreClient, keys: Sequence[bytes], load: KvLoad, part: tuple[int, int], data: bytes) -> Rate:
    """Each reader reads the chain `passes` times, a share of it a call, into a region of its own."""
    each = part[1] or load.block_bytes
    count = max(1, min(len(keys), WRITE_BATCH_BYTES // each))
    latencies: list[float] = []
    expected = data[part[0] : part[0] + each]

    async def reader(number: int) -> int:
        total = 0
        with MemoryRegion.create(f"bench.{os.getpid()}.{number}", count * each, Rights.WRITE) as region:
            async with client.lease(keys, LEASE_S) as hit:
                for at in [at for _ in range(load.passes) for at in range(0, hit.hit, count)]:
                    some = min(count, hit.hit - at)
                    start = time.perf_counter()
                    got = await client.read(
                        hit.lease_id, at, some, load.block_bytes, region.descriptor(), timeout_s=60, part=part
                    )
                    latencies.append(time.perf_counter() - start)
                    if got.blocks < some:
                        raise RuntimeError(f"a block could not be read: {got.reason}")
                    total += some * each
            if region.view[:each].tobytes() != expected:
                raise RuntimeError("the store gave other bytes than were written")
        return total

    begun = time.perf_counter()
    totals = await asyncio.gather(*(reader(number) for number in range(load.readers)))
    return Rate(sum(totals), time.perf_counter() - begun, latencies)
