"""The store through its client: chains, lookups, leases, reads."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.region import MemoryRegion
from services.kvstore.client import StoreUnavailable
from tests.kvstore.blocks import LENGTH, keys
from tests.waiting import until


async def test_what_is_committed_is_read_back_also_after_a_restart(start: Any, tools: Any, region: Any) -> None:
    blocks = tools.chain(12)
    async with start() as store:
        assert (await store.client.lookup(keys(blocks), 5)).hit == 0
        assert await tools.put(store.client, blocks) == [""] * 12
        assert await tools.get(store.client, blocks, region) == 12
        stats = await store.client.stats()
        assert (stats.blocks, stats.bytes) == (12, tools.size(*blocks))
        assert (stats.blocks_written, stats.blocks_read, stats.tickets) == (12, 12, 0)
    async with start() as store:
        assert await tools.get(store.client, blocks, region) == 12
        assert (await store.client.stats()).bytes == tools.size(*blocks)


async def test_lookup_gives_the_longest_run_from_the_first(start: Any, tools: Any) -> None:
    blocks, other = tools.chain(6), tools.chain(3, seed=9)
    async with start() as store:
        await tools.put(store.client, blocks[:4])
        assert (await store.client.lookup(keys(blocks))).hit == 4
        assert (await store.client.lookup(keys(other))).hit == 0
        assert (await store.client.lookup([])).hit == 0
        assert (await store.client.lookup(keys(blocks[2:]))).hit == 2
        assert (await store.client.stats()).leases == 0


async def test_blocks_in_the_middle_of_a_lease(start: Any, tools: Any, region: MemoryRegion) -> None:
    blocks = tools.chain(6)
    async with start() as store:
        await tools.put(store.client, blocks)
        async with store.client.lease(keys(blocks), 10) as hit:
            got = await store.client.read(hit.lease_id, 2, 3, LENGTH, region.descriptor(), 777)
            assert (got.blocks, got.reason) == (3, "")
            for at, block in enumerate(blocks[2:5]):
                begin = 777 + at * LENGTH
                assert region.view[begin : begin + LENGTH].tobytes() == tools.payload(block)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"lease_id": 77}, "lease has ended"),
        ({"first": 2, "count": 2}, "of a lease of 3"),
        ({"block_bytes": LENGTH - 1}, f"{LENGTH} bytes, the reader expects {LENGTH - 1}"),
        ({"target": RegionDescriptor(transport="shm", address="/nowhere", length=1)}, "/nowhere"),
        ({"target": RegionDescriptor(transport="pigeon")}, "pigeon"),
        ({"offset": 64 * LENGTH - 10}, "bytes"),
    ],
)
async def test_a_read_that_cannot_be(start: Any, tools: Any, region: Any, changed: dict[str, Any], why: str) -> None:
    blocks = tools.chain(3)
    async with start() as store:
        await tools.put(store.client, blocks)
        async with store.client.lease(keys(blocks), 10) as hit:
            asked = {
                "lease_id": hit.lease_id,
                "first": 0,
                "count": 3,
                "block_bytes": LENGTH,
                "target": region.descriptor(),
            }
            got = await store.client.read(**{**asked, **changed})
            assert got.blocks == 0
            assert why in got.reason
            assert (await store.client.read(**asked)).blocks == 3, "the store serves on"
        assert (await store.client.stats()).blocks == 3


async def test_a_reader_whose_region_ended_gets_nothing(start: Any, tools: Any, shared_memory: Path) -> None:
    blocks = tools.chain(1)
    async with start() as store:
        await tools.put(store.client, blocks)
        async with store.client.lease(keys(blocks), 10) as hit:
            with MemoryRegion.create("gone", LENGTH) as gone:
                descriptor = gone.descriptor()
            assert (await store.client.read(hit.lease_id, 0, 1, LENGTH, descriptor)).blocks == 0
            with MemoryRegion.create("gone", LENGTH):
                got = await store.client.read(hit.lease_id, 0, 1, LENGTH, descriptor)
            assert got.blocks == 0
            assert "generation" in got.reason


async def test_leases_end_by_release_twice_or_by_time(start: Any, tools: Any, region: MemoryRegion) -> None:
    blocks = tools.chain(2)
    async with start(max_leases=2, max_lease_s=30.0) as store:
        await tools.put(store.client, blocks)
        first, second = await store.client.lookup(keys(blocks), 9999), await store.client.lookup(keys(blocks), 0.05)
        assert first.ttl_s == 30.0
        await until(lambda: store.service._leases.get(second.lease_id, asyncio.get_running_loop().time()) is None)
        assert (await store.client.read(second.lease_id, 0, 1, LENGTH, region.descriptor())).blocks == 0
        third = await store.client.lookup(keys(blocks), 10)
        with pytest.raises(StoreUnavailable, match="all leases are taken"):
            await store.client.lookup(keys(blocks), 10)
        for _ in range(2):
            await store.client.release(first.lease_id)
            await store.client.release(third.lease_id)
        assert (await store.client.stats()).leases == 0


async def test_a_lease_ends_with_its_block_on_every_way_out(start: Any, tools: Any) -> None:
    blocks = tools.chain(1)
    async with start() as store:
        await tools.put(store.client, blocks)
        with pytest.raises(RuntimeError, match="mine"):
            async with store.client.lease(keys(blocks), 60):
                raise RuntimeError("mine")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), store.client.lease(keys(blocks), 60):
                await asyncio.Event().wait()
        await until(lambda: store.service.stats().leases == 0)


async def test_keys_of_a_wrong_length_are_refused(start: Any) -> None:
    async with start() as store:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await store.client.lookup([b"short"])
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
