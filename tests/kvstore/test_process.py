"""The store as a process: kill -9 at any moment, SIGTERM, wrong settings."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from services.kvstore.client import StoreClient, StoreUnavailable
from tests.kvstore.crash import crash
from tests.kvstore.effort import EFFORT

ROUNDS = 3 * EFFORT


@pytest.mark.parametrize("engine", ["files", "local"])
async def test_kill_9_at_any_moment_loses_nothing_confirmed(tmp_path: Path, engine: str) -> None:
    crashes = await crash(ROUNDS, engine, 1, tmp_path / "store")
    assert crashes.blocks_confirmed > ROUNDS, "the store died before it could do anything"


async def test_sigterm_ends_well_and_leaves_no_memory(spawn: Any, tools: Any, shared_memory: Path) -> None:
    store = await spawn()
    blocks = tools.chain(3)
    async with StoreClient(store.address) as client:
        assert await tools.put(client, blocks) == [""] * 3
        store.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(store.process.wait(), 60) == 0
        with pytest.raises(StoreUnavailable):
            await client.lookup([blocks[0].key])
    assert os.listdir(shared_memory) == []


async def test_a_client_outlives_its_store(spawn: Any, tools: Any, region: Any) -> None:
    store = await spawn()
    blocks = tools.chain(4)
    async with StoreClient(store.address) as client:
        assert await tools.put(client, blocks[:2]) == ["", ""]
        old = await client.lookup([blocks[0].key], 60)
        await store.kill()
        with pytest.raises(StoreUnavailable):
            await client.lookup([blocks[0].key])
        await spawn(address=store.address)
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(StoreUnavailable):
                    if await tools.get(client, blocks, region) == 2:
                        break
                await asyncio.sleep(0.05)
        assert (await client.read(old.lease_id, 0, 1, 20_000, region.descriptor())).blocks == 0
        assert await tools.put(client, blocks) == ["exists", "exists", "", ""]


async def test_a_frozen_store_is_unavailable_in_time(spawn: Any, tools: Any) -> None:
    store = await spawn()
    async with StoreClient(store.address) as client:
        await client.stats()
        store.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
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
