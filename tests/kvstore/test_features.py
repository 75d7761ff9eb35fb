"""Slices, draining, keeping, listing, verifying, collecting, marks, shares, and stores that share a folder."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.region import MemoryRegion
from services.kvstore.engines.files.engine import FileEngine
from tests.kvstore.blocks import keys

LENGTH = 20_000


@pytest.mark.parametrize("stride", [0, 5000])
async def test_layers_of_blocks_go_where_the_reader_wants_them(
    start: Any, tools: Any, region: MemoryRegion, stride: int
) -> None:
    blocks, layer = tools.chain(5), 4000
    async with start() as store:
        await tools.put(store.client, blocks)
        async with store.client.lease(keys(blocks), 10) as hit:
            for number in range(LENGTH // layer):
                region.view[:] = 0
                part = (number * layer, layer)
                got = await store.client.read(
                    hit.lease_id, 1, 3, LENGTH, region.descriptor(), 100, part=part, stride=stride
                )
                assert (got.blocks, got.reason) == (3, "")
                for at, block in enumerate(blocks[1:4]):
                    begin = 100 + at * (stride or layer)
                    expected = tools.payload(block)[number * layer : (number + 1) * layer]
                    assert region.view[begin : begin + layer].tobytes() == expected
            assert np.count_nonzero(region.view) <= 3 * layer
            over = await store.client.read(hit.lease_id, 0, 1, LENGTH, region.descriptor(), part=(LENGTH - 1, 2))
            assert over.blocks == 0
            assert "of blocks of" in over.reason
        stats = await store.client.stats()
        assert (stats.blocks_read, stats.bytes_read) == (15, 15 * layer)


async def test_a_draining_store_takes_nothing_new_and_serves_what_is_leased(
    start: Any, tools: Any, region: MemoryRegion
) -> None:
    blocks = tools.chain(3)
    async with start() as store:
        await tools.put(store.client, blocks[:2])
        hit = await store.client.lookup(keys(blocks), 10)
        assert await store.client.drain(0.05) == (1, 0)
        assert (await store.client.stats()).draining
        assert (await store.client.lookup(keys(blocks), 10)).hit == 0
        (reason,) = await tools.put(store.client, blocks[2:])
        assert reason.startswith("draining")
        assert (await store.client.read(hit.lease_id, 0, 2, LENGTH, region.descriptor())).blocks == 2
        draining = asyncio.create_task(store.client.drain(10))
        await store.client.release(hit.lease_id)
        assert await draining == (0, 0)
        await store.client.drain(0, resume=True)
        assert await tools.put(store.client, blocks[2:]) == [""]
        assert await tools.get(store.client, blocks, region) == 3


async def test_what_is_kept_outlives_what_is_used(start: Any, tools: Any, region: MemoryRegion) -> None:
    kept, others = tools.chain(2), [tools.chain(2, seed=seed) for seed in range(1, 5)]
    async with start(capacity_bytes=4 * tools.size(kept[0]), keep_share=0.5) as store:
        await tools.put(store.client, kept)
        assert await store.client.keep(keys(kept)) == 2
        assert await store.client.keep(keys(kept)) == 2
        for blocks in others:
            assert await tools.put(store.client, blocks) == ["", ""]
        assert await store.client.keep(keys(others[-1])) == 0, "no more than the share may be kept"
        assert await tools.get(store.client, kept, region) == 2
        assert (await store.client.stats()).kept_blocks == 2
        assert await store.client.keep(keys(kept), let_go=True) == 2
        for blocks in others[:2]:
            assert await tools.put(store.client, blocks) == ["", ""]
        assert (await store.client.lookup(keys(kept))).hit == 0


async def test_everything_is_listed_and_verified_and_the_broken_dropped(
    start: Any, tools: Any, region: MemoryRegion, tmp_path: Path
) -> None:
    blocks, other = tools.chain(5), tools.chain(2, seed=1)
    async with start() as store:
        await tools.put(store.client, [*blocks, *other])
        listed = {block.key: block async for block in store.client.blocks()}
        assert set(listed) == set(keys([*blocks, *other]))
        entry = listed[blocks[3].key]
        assert (entry.parent, entry.position, entry.bytes, entry.pins) == (blocks[2].key, 3, LENGTH, 0)
        assert {block.root for block in listed.values()} == {blocks[0].parent}
        path = tmp_path / "store" / "blocks" / blocks[3].key.hex()[0] / blocks[3].key.hex()
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        replies = [reply async for reply in store.client.verify()]
        assert sum(reply.checked for reply in replies) == 7
        assert sum(reply.bytes for reply in replies) == 7 * LENGTH
        assert [key for reply in replies for key in reply.broken] == [blocks[3].key]
        assert (await store.client.lookup(keys(blocks))).hit == 3
        assert (await store.client.stats()).blocks == 5


async def test_collecting_frees_the_oldest_and_not_what_is_leased(start: Any, tools: Any) -> None:
    leased, old, new = (tools.chain(2, seed=seed) for seed in range(3))
    size = tools.size(old[0])
    async with start(capacity_bytes=6 * size) as store:
        for blocks in (leased, old, new):
            await tools.put(store.client, blocks)
        async with store.client.lease(keys(leased), 60):
            reply = await store.client.collect(2 * size)
            assert (reply.blocks, reply.free_bytes) == (2, 2 * size)
            assert (await store.client.lookup(keys(old))).hit == 0
            reply = await store.client.collect(6 * size)
            assert (reply.blocks, reply.free_bytes) == (2, 4 * size)
            assert (await store.client.lookup(keys(leased))).hit == 2


async def test_above_the_high_mark_blocks_go_ahead_of_need(start: Any, tools: Any) -> None:
    chains = [tools.chain(1, seed=seed) for seed in range(10)]
    size = tools.size(chains[0][0])
    async with start(capacity_bytes=10 * size, high_watermark=0.85, low_watermark=0.5) as store:
        for blocks in chains[:8]:
            await tools.put(store.client, blocks)
        assert (await store.client.stats()).blocks == 8
        assert await tools.put(store.client, chains[8]) == [""]
        assert (await store.client.stats()).blocks == 5
        assert (await store.client.lookup(keys(chains[8]))).hit == 1


async def test_a_tenant_that_writes_much_leaves_the_others_alone(start: Any, tools: Any, region: MemoryRegion) -> None:
    quiet, loud = tools.chain(3), tools.chain(30, seed=1, tenant="loud")
    async with start(capacity_bytes=10 * tools.size(quiet[0]), root_share=0.5) as store:
        await tools.put(store.client, quiet)
        for at in range(0, 30, 5):
            await tools.put(store.client, loud[at : at + 5])
        for seed in range(2, 8):
            await tools.put(store.client, tools.chain(2, seed=seed, tenant="loud"))
        assert await tools.get(store.client, quiet, region) == 3
        stats = await store.client.stats()
        assert (stats.blocks, stats.roots) == (8, 2)


async def test_two_stores_of_one_folder_see_each_others_blocks(
    start: Any, tools: Any, region: MemoryRegion, tmp_path: Path
) -> None:
    blocks, folder = tools.chain(6), tmp_path / "store"
    async with (
        start(FileEngine(folder, shared=True)) as one,
        start(FileEngine(folder, shared=True)) as two,
    ):
        assert await tools.put(one.client, blocks[:4]) == [""] * 4
        assert await tools.get(two.client, blocks, region) == 4, "found by the lookup that missed them"
        assert (await two.client.stats()).blocks_adopted == 4
        assert await tools.put(two.client, blocks[4:]) == ["", ""]
        assert await tools.get(one.client, blocks, region) == 6
        await one.client.collect((await one.client.stats()).capacity_bytes)
        assert (await one.client.stats()).blocks == 0
        assert await tools.get(two.client, blocks, region) == 0, "a miss, never an error"
        assert (await two.client.stats()).blocks == 0
        assert await tools.put(two.client, blocks) == [""] * 6
        assert await tools.get(one.client, blocks, region) == 6


async def test_the_read_queue_is_told_in_tokens(start: Any, tools: Any, region: MemoryRegion, tmp_path: Path) -> None:
    blocks = tools.chain(3)
    engine = FileEngine(tmp_path / "store")
    go = asyncio.Event()
    loop = asyncio.get_running_loop()
    load = engine.load

    def slow(reads: Any) -> Any:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(20)
        return load(reads)

    async with start(engine) as store:
        await tools.put(store.client, blocks)
        async with store.client.lease(keys(blocks), 10) as hit:
            engine.load = slow  # type: ignore[method-assign]
            read = asyncio.create_task(store.client.read(hit.lease_id, 0, 3, LENGTH, region.descriptor()))
            async with asyncio.timeout(60):
                while (await store.client.lookup([], 0)).read_queue_tokens != 3 * 64:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            assert (await store.client.stats()).read_queue_tokens == 3 * 64
            go.set()
            assert (await read).blocks == 3
            assert (await store.client.stats()).read_queue_tokens == 0


async def test_regions_stay_open_until_they_end(start: Any, tools: Any, shared_memory: Path) -> None:
    blocks = tools.chain(1)
    async with start() as store:
        await tools.put(store.client, blocks)
        regions = store.service._reader._regions
        async with store.client.lease(keys(blocks), 10) as hit:
            with MemoryRegion.create("mine", LENGTH) as mine:
                for _ in range(3):
                    assert (await store.client.read(hit.lease_id, 0, 1, LENGTH, mine.descriptor())).blocks == 1
                assert len(regions) == 1
                regions.sweep()
                assert len(regions) == 1
                ended: RegionDescriptor = mine.descriptor()
            assert (await store.client.read(hit.lease_id, 0, 1, LENGTH, ended)).blocks == 0
            regions.sweep()
            assert len(regions) == 0
