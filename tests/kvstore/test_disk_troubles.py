"""Disks that are slow, broken, full, or smaller than they were said to be."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from services.kvstore.engines import Read, Write
from services.kvstore.engines.files.engine import FileEngine
from tests.kvstore.blocks import LENGTH, keys
from tests.waiting import until


class SlowEngine(FileEngine):
    """Waits before it loads until told to go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reached, self.go = threading.Event(), threading.Event()

    def load(self, reads: Sequence[Read]) -> list[Exception | None]:
        self.reached.set()
        assert self.go.wait(60)
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

        async def read() -> None:
            async with store.client.lease(keys(blocks), 60) as hit:
                await store.client.read(hit.lease_id, 0, 3, LENGTH, region.descriptor())

        reading = asyncio.create_task(read())
        await until(engine.reached.is_set)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
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
