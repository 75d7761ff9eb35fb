"""The store as a process: kill -9 at any moment, SIGTERM, wrong settings."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from services.fabric.region import MemoryRegion
from services.kvstore.block import Block
from services.kvstore.client import StoreClient, StoreUnavailable

ROUNDS = 15


async def commit_until_killed(port: int, blocks: list[Block], tools: Any) -> list[Block]:
    """Writes the chain two blocks at a time; returns the blocks whose commit was confirmed."""
    confirmed: list[Block] = []
    async with StoreClient(f"127.0.0.1:{port}") as client:
        with contextlib.suppress(StoreUnavailable):
            for at in range(0, len(blocks), 2):
                reasons = await tools.put(client, blocks[at : at + 2])
                confirmed.extend(b for b, reason in zip(blocks[at : at + 2], reasons, strict=True) if not reason)
    return confirmed


async def test_kill_9_at_any_moment_loses_nothing_confirmed(
    spawn: Any, tools: Any, region: MemoryRegion, tmp_path: Path
) -> None:
    dice = random.Random(5)
    folder = tmp_path / "store"
    store = await spawn(capacity_bytes=1 << 30)
    chains: list[list[Block]] = []
    for round_number in range(ROUNDS):
        blocks = tools.chain(64, seed=round_number)
        writers = [
            asyncio.create_task(commit_until_killed(store.port, part, tools))
            for part in (blocks, tools.chain(64, seed=1000 + round_number))
        ]
        await asyncio.sleep(dice.uniform(0, 0.12))  # the moment of death is what varies
        await store.kill()
        chains.extend(await asyncio.gather(*writers))
        store = await spawn(capacity_bytes=1 << 30)
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
        assert all(path.parent.parent.name == "blocks" for path in files), "a temporary file is left"
        async with StoreClient(f"127.0.0.1:{store.port}") as client:
            for confirmed in chains[-2:]:
                assert await tools.get(client, confirmed, region) == len(confirmed)
            stats = await client.stats()
            assert stats.bytes == sum(path.stat().st_size for path in files)
            assert stats.blocks == len(files)
    async with StoreClient(f"127.0.0.1:{store.port}") as client:
        for confirmed in chains:
            assert await tools.get(client, confirmed, region) == len(confirmed)
        assert (await client.stats()).blocks_corrupt == 0
    assert sum(len(confirmed) for confirmed in chains) > ROUNDS, "the store died before it could do anything"


async def test_sigterm_ends_well_and_leaves_no_memory(spawn: Any, tools: Any, shared_memory: Path) -> None:
    store = await spawn()
    blocks = tools.chain(3)
    async with StoreClient(f"127.0.0.1:{store.port}") as client:
        assert await tools.put(client, blocks) == [""] * 3
        store.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(store.process.wait(), 20) == 0
        with pytest.raises(StoreUnavailable):
            await client.lookup([blocks[0].key])
    assert os.listdir(shared_memory) == []


async def test_a_client_outlives_its_store(spawn: Any, tools: Any, region: Any) -> None:
    store = await spawn()
    blocks = tools.chain(4)
    async with StoreClient(f"127.0.0.1:{store.port}") as client:
        assert await tools.put(client, blocks[:2]) == ["", ""]
        old = await client.lookup([blocks[0].key], 60)
        await store.kill()
        with pytest.raises(StoreUnavailable):
            await client.lookup([blocks[0].key])
        await spawn(address=f"127.0.0.1:{store.port}")
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(StoreUnavailable):
                    if await tools.get(client, blocks, region) == 2:
                        break
                await asyncio.sleep(0.05)
        assert (await client.read(old.lease_id, 0, 1, 20_000, region.descriptor())).blocks == 0
        assert await tools.put(client, blocks) == ["exists", "exists", "", ""]


async def test_a_frozen_store_is_unavailable_in_time(spawn: Any, tools: Any) -> None:
    store = await spawn()
    async with StoreClient(f"127.0.0.1:{store.port}") as client:
        await client.stats()
        store.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(10):
                with pytest.raises(StoreUnavailable, match="DEADLINE"):
                    await client.lookup([b"k" * 16], timeout_s=0.1)
        finally:
            store.process.send_signal(signal.SIGCONT)
        await client.stats()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"capacity_bytes": 0}, "capacity-bytes"),
        ({"address": "here"}, "address"),
        ({"max_lease_s": "long"}, "max-lease-s"),
        ({"path": "/proc/nowhere"}, "/proc/nowhere"),
        ({"write_buffer_bytes": 1 << 50}, "write-buffer-bytes"),
    ],
)
async def test_a_wrong_setting_is_named(spawn: Any, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(AssertionError, match=named) as error:
        await spawn(**changed)
    assert "ended with 2" in str(error.value)


async def test_two_stores_do_not_share_a_folder(spawn: Any) -> None:
    await spawn()
    with pytest.raises(AssertionError, match="in use by another store"):
        await spawn()
