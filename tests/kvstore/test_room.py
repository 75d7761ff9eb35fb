"""Blocks into the store: room, eviction, refusals, parents and children, places that come back."""

import asyncio
from typing import Any

import pytest

from services.kvstore.block import Block
from tests.kvstore.blocks import LENGTH, keys
from tests.waiting import until


async def test_eviction_takes_cold_leaves_and_never_what_is_leased(start: Any, tools: Any, region: Any) -> None:
    cold, warm, leased, new = (tools.chain(3, seed=seed) for seed in range(4))
    size = tools.size(cold[0])
    async with start(capacity_bytes=9 * size + size // 2) as store:
        for blocks in (leased, cold, warm):
            await tools.put(store.client, blocks)
        async with store.client.lease(keys(leased), 60):
            await store.client.lookup(keys(warm))
            assert await tools.put(store.client, new[:2]) == ["", ""]
            assert (await store.client.lookup(keys(cold))).hit == 1
            assert await tools.get(store.client, warm, region) == 3
            assert await tools.get(store.client, leased, region) == 3
            stats = await store.client.stats()
            assert (stats.blocks, stats.blocks_evicted, stats.bytes) == (9, 2, 9 * size)


async def test_a_store_full_of_leased_blocks_refuses(start: Any, tools: Any) -> None:
    blocks, more = tools.chain(3), tools.chain(1, seed=1)
    async with start(capacity_bytes=3 * tools.size(blocks[0])) as store:
        await tools.put(store.client, blocks)
        async with store.client.lease(keys(blocks), 60):
            (reason,) = await tools.put(store.client, more)
            assert "full" in reason
        await until(lambda: store.service.stats().leases == 0)
        assert (await store.client.stats()).blocks_evicted == 0
        assert await tools.put(store.client, more) == [""]


async def test_a_chain_longer_than_the_store_keeps_its_beginning(start: Any, tools: Any, region: Any) -> None:
    blocks = tools.chain(6)
    async with start(capacity_bytes=4 * tools.size(blocks[0])) as store:
        reasons = await tools.put(store.client, blocks)
        assert reasons[:4] == [""] * 4
        assert all(reasons[4:])
        assert await tools.get(store.client, blocks, region) == 4


async def test_a_block_larger_than_the_store_evicts_nothing(start: Any, tools: Any) -> None:
    blocks, giant, wide = tools.chain(2), tools.chain(1, 5, length=100_000), tools.chain(1, 6, length=5 << 20)
    async with start(capacity_bytes=2 * tools.size(blocks[0])) as store:
        await tools.put(store.client, blocks)
        assert "too large" in (await tools.put(store.client, giant))[0]
        assert "too large" in (await tools.put(store.client, wide))[0]
        stats = await store.client.stats()
        assert (stats.blocks, stats.blocks_evicted) == (2, 0)


async def test_begin_says_why_not(start: Any, tools: Any) -> None:
    blocks = tools.chain(4)
    lie = Block(blocks[2].key, blocks[0].key, 1, LENGTH, blocks[2].tokens)
    async with start() as store:
        await tools.put(store.client, blocks[:1])
        async with store.client.write([*blocks[:2], blocks[3], lie]) as batch:
            assert [batch.reason(at) for at in range(3)] == ["exists", "", "no parent"]
            assert "key" in batch.reason(3)
            async with store.client.write(blocks[1:3]) as second:
                assert [second.reason(0), second.reason(1)] == ["writing", ""]
        await until(lambda: store.service.stats().tickets == 0)
        assert await tools.put(store.client, blocks[1:]) == [""] * 3


async def test_a_child_whose_parent_was_not_committed_is_refused(start: Any, tools: Any) -> None:
    blocks = tools.chain(2)
    async with start() as store:
        async with store.client.write(blocks) as batch:
            batch.fill(1, tools.payload(blocks[1]))
            assert await batch.commit() == ["not filled", "no parent"]
        await until(lambda: store.service.stats().tickets == 0)
        assert (await store.client.stats()).blocks == 0


@pytest.mark.parametrize("comes", [True, False])
async def test_a_child_waits_for_a_parent_that_another_writer_brings(start: Any, tools: Any, comes: bool) -> None:
    blocks = tools.chain(3)
    async with start() as store:
        async with store.client.write(blocks[:1]) as first:
            first.fill(0, tools.payload(blocks[0]))
            async with store.client.write(blocks) as second:
                assert [second.reason(at) for at in range(3)] == ["writing", "", ""]
                for at in (1, 2):
                    second.fill(at, tools.payload(blocks[at]))
                children = asyncio.create_task(second.commit())
                await until(
                    lambda: any(ticket.committing for ticket in store.service._writer.tickets._tickets.values())
                )
                if comes:
                    assert await first.commit() == [""]
                else:
                    store.service._writer.abort([ticket.ticket_id for ticket in first._tickets])
                found = await children
        assert found == (["writing", "", ""] if comes else ["writing", "no parent", "no parent"])


async def test_a_parent_with_a_child_on_its_way_is_not_evicted(start: Any, tools: Any, region: Any) -> None:
    blocks, other = tools.chain(2), tools.chain(1, seed=1)
    async with start(capacity_bytes=2 * tools.size(blocks[0])) as store:
        await tools.put(store.client, blocks[:1])
        async with store.client.write(blocks[1:]) as batch:
            assert await tools.put(store.client, other) == [""]
            assert await tools.put(store.client, tools.chain(1, seed=2)) == [""]
            batch.fill(0, tools.payload(blocks[1]))
            assert await batch.commit() == [""]
        assert await tools.get(store.client, blocks, region) == 2


async def test_bytes_that_differ_from_their_checksum_are_refused(start: Any, tools: Any) -> None:
    (block,) = tools.chain(1)
    async with start() as store:
        async with store.client.write([block]) as batch:
            batch.fill(0, tools.payload(block))
            batch._region.write(batch._tickets[0].offset + 5, b"late")
            (reason,) = await batch.commit()
            assert "checksum" in reason
        assert (await store.client.lookup([block.key])).hit == 0
        assert await tools.put(store.client, [block]) == [""]


async def test_the_buffer_fills_and_places_come_back(start: Any, tools: Any) -> None:
    blocks = tools.chain(5, length=60_000)
    async with start(write_buffer_bytes=3 * 65536) as store:
        async with store.client.write(blocks) as batch:
            assert [bool(batch.reason(at)) for at in range(5)] == [False, False, False, True, True]
            assert "full" in batch.reason(3)
        await until(lambda: store.service.stats().tickets == 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), store.client.write(blocks):
                await asyncio.Event().wait()
        await until(lambda: store.service.stats().tickets == 0)
        assert await tools.put(store.client, blocks[:3]) == [""] * 3


async def test_a_ticket_that_waits_too_long_expires(start: Any, tools: Any) -> None:
    (block,) = tools.chain(1)
    async with start(ticket_s=0.05) as store:
        async with store.client.write([block]) as batch:
            batch.fill(0, tools.payload(block))
            await asyncio.sleep(0.06)
            (reason,) = await batch.commit()
        assert "expired" in reason
        assert (await store.client.stats()).blocks == 0


async def test_two_writers_of_the_same_chain_both_end_well(start: Any, tools: Any, region: Any) -> None:
    blocks = tools.chain(8)
    async with start() as store:
        outcomes = await asyncio.gather(*(tools.put(store.client, blocks) for _ in range(4)))
        for reasons in zip(*outcomes, strict=True):
            assert sorted(reasons)[0] == ""
            assert set(reasons) <= {"", "exists", "writing"}
        assert await tools.get(store.client, blocks, region) == 8
