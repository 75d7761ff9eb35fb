"""The store through its client: chains, leases, eviction, refusals."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.region import MemoryRegion
from services.kvstore.block import Block
from services.kvstore.client import StoreUnavailable
from services.kvstore.engines import Read, Write
from services.kvstore.engines.files.engine import FileEngine

LENGTH = 20_000


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def keys(blocks: list[Block]) -> list[bytes]:
    return [block.key for block in blocks]


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


class SlowEngine(FileEngine):
    """Waits before it loads until told to go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reached, self.go = threading.Event(), threading.Event()

    def load(self, reads: Sequence[Read]) -> list[Exception | None]:
        self.reached.set()
        assert self.go.wait(20)
        return super().load(reads)


async def test_a_read_slower_than_its_lease_counts_nothing(start: Any, tools: Any, region: Any, tmp_path: Path) -> None:
    blocks, other = tools.chain(2), tools.chain(2, seed=1)
    engine = SlowEngine(tmp_path / "store")
    async with start(engine, capacity_bytes=2 * tools.size(blocks[0])) as store:
        await tools.put(store.client, blocks)
        hit = await store.client.lookup(keys(blocks), 0.2)
        read = asyncio.create_task(store.client.read(hit.lease_id, 0, 2, LENGTH, region.descriptor()))
        await until(engine.reached.is_set)
        await until(lambda: store.service._leases.get(hit.lease_id, asyncio.get_running_loop().time()) is None)
        assert await tools.put(store.client, other) == ["", ""], "evicts what was leased"
        engine.go.set()
        got = await read
        assert got.blocks == 0
        assert "lease" in got.reason
        assert await tools.get(store.client, other, region) == 2


async def test_a_lease_released_during_the_read_counts_nothing(
    start: Any, tools: Any, region: Any, tmp_path: Path
) -> None:
    blocks = tools.chain(2)
    engine = SlowEngine(tmp_path / "store")
    async with start(engine) as store:
        await tools.put(store.client, blocks)
        hit = await store.client.lookup(keys(blocks), 60)
        read = asyncio.create_task(store.client.read(hit.lease_id, 0, 2, LENGTH, region.descriptor()))
        await until(engine.reached.is_set)
        await store.client.release(hit.lease_id)
        engine.go.set()
        assert (await read).blocks == 0


async def test_a_cancelled_read_stops_and_frees(start: Any, tools: Any, region: Any, tmp_path: Path) -> None:
    blocks = tools.chain(3)
    engine = SlowEngine(tmp_path / "store")
    async with start(engine, read_threads=1, max_reads=1) as store:
        await tools.put(store.client, blocks)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), store.client.lease(keys(blocks), 60) as hit:
                await store.client.read(hit.lease_id, 0, 3, LENGTH, region.descriptor())
        await until(lambda: store.service.stats().leases == 0)
        other = await store.client.lookup(keys(blocks), 60)
        assert (await store.client.read(other.lease_id, 0, 1, LENGTH, region.descriptor())).reason == "busy"
        engine.go.set()
        await until(lambda: store.service._reader._reading == 0)
        assert (await store.client.read(other.lease_id, 0, 3, LENGTH, region.descriptor())).blocks == 3


async def test_a_broken_block_is_a_miss_dropped_with_its_children(
    start: Any, tools: Any, region: Any, tmp_path: Path
) -> None:
    blocks = tools.chain(6)
    async with start() as store:
        await tools.put(store.client, blocks)
        name = blocks[3].key.hex()
        path = tmp_path / "store" / "blocks" / name[0] / name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        assert await tools.get(store.client, blocks, region) == 3
        stats = await store.client.stats()
        assert (stats.blocks, stats.blocks_corrupt, stats.bytes) == (3, 1, 3 * tools.size(blocks[0]))
        assert (await store.client.lookup(keys(blocks))).hit == 3
        assert await tools.put(store.client, blocks) == ["exists"] * 3 + [""] * 3
        assert await tools.get(store.client, blocks, region) == 6


class FullDisk(FileEngine):
    """Has room for `blocks` blocks."""

    def __init__(self, root: Path, blocks: int) -> None:
        super().__init__(root)
        self.blocks = blocks

    def put(self, writes: Sequence[Write]) -> list[Exception | None]:
        room = max(0, self.blocks - len(list(self._tree.files())))
        full = OSError(28, "No space left on device")
        return super().put(writes[:room]) + [full] * len(writes[room:])


FULL = "disk: No space left on device"


async def test_a_full_disk_is_a_clean_refusal_and_gets_go_on(
    start: Any, tools: Any, region: Any, tmp_path: Path
) -> None:
    blocks, more = tools.chain(2), tools.chain(2, seed=1)
    disk = FullDisk(tmp_path / "store", 0)
    async with start(disk) as store:
        assert await tools.put(store.client, blocks) == [FULL, FULL]
        stats = await store.client.stats()
        assert (stats.blocks, stats.bytes, stats.tickets) == (0, 0, 0)
        disk.blocks = 2
        assert await tools.put(store.client, blocks) == ["", ""], "recovers when there is room"
        async with store.client.lease(keys(blocks), 60):
            assert await tools.put(store.client, more) == [FULL, FULL]
            assert await tools.get(store.client, blocks, region) == 2
            disk.blocks = 4
            assert await tools.put(store.client, more) == ["", ""]
        assert await tools.get(store.client, more, region) == 2


async def test_a_disk_smaller_than_the_store_may_be_takes_new_blocks_for_old(
    start: Any, tools: Any, region: Any, tmp_path: Path
) -> None:
    old, new = tools.chain(32), tools.chain(3, seed=1)
    async with start(FullDisk(tmp_path / "store", 32)) as store:
        assert await tools.put(store.client, old) == [""] * 32
        assert await tools.put(store.client, new) == [FULL] * 3
        assert await tools.put(store.client, new) == ["", "", FULL]
        assert await tools.put(store.client, new[2:]) == [""]
        assert await tools.get(store.client, new, region) == 3
        assert await tools.get(store.client, old, region) == 28
        stats = await store.client.stats()
        assert (stats.blocks, stats.blocks_evicted, stats.bytes) == (31, 4, 31 * tools.size(old[0]))


async def test_two_writers_of_the_same_chain_both_end_well(start: Any, tools: Any, region: Any) -> None:
    blocks = tools.chain(8)
    async with start() as store:
        outcomes = await asyncio.gather(*(tools.put(store.client, blocks) for _ in range(4)))
        for reasons in zip(*outcomes, strict=True):
            assert sorted(reasons)[0] == ""
            assert set(reasons) <= {"", "exists", "writing"}
        assert await tools.get(store.client, blocks, region) == 8


async def test_keys_of_a_wrong_length_are_refused(start: Any) -> None:
    async with start() as store:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await store.client.lookup([b"short"])
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
