"""Chains of blocks with known bytes, a store in this process, and a store in a process of its own."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.common import rpc
from services.fabric.region import MemoryRegion
from services.kvstore.block import Block
from services.kvstore.client import StoreClient
from services.kvstore.engines import StorageEngine
from services.kvstore.engines.files.engine import FileEngine
from services.kvstore.service import NAME, StoreService
from services.kvstore.settings import StoreSettings
from services.kvstore.store import open_store
from tests.kvstore.blocks import LENGTH, chain, get, payload, put, size
from tests.kvstore.processes import shared_memory, spawn

__all__ = ["shared_memory", "spawn"]

FULL = {"high_watermark": 1.0, "low_watermark": 1.0}
"""Nothing is evicted ahead of need, so that tests can count."""


@dataclass
class Tools:
    chain: Callable[..., list[Block]]
    payload: Callable[[Block], bytes]
    put: Callable[..., object]
    get: Callable[..., object]
    size: Callable[..., int]


@dataclass
class Running:
    client: StoreClient
    service: StoreService


@pytest.fixture
def tools() -> Tools:
    return Tools(chain, payload, put, get, size)


@pytest.fixture
def region(shared_memory: Path) -> MemoryRegion:
    with MemoryRegion.create("reader", 64 * LENGTH) as region:
        yield region


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Running]]:
    """start(engine=None, **settings): a store in this process, and a client of it."""

    @contextlib.asynccontextmanager
    async def start(engine: StorageEngine | None = None, **changed: object) -> AsyncIterator[Running]:
        settings = StoreSettings(**{"path": str(tmp_path / "store"), "write_buffer_bytes": 4 << 20, **FULL, **changed})
        async with (
            open_store(settings, engine or FileEngine(settings.folder)) as service,
            rpc.serve("127.0.0.1:0", service.register, [NAME], grace_s=0) as server,
            StoreClient(f"127.0.0.1:{server.port}") as client,
        ):
            await rpc.wait_ready(client._calls.channel, 20)
            yield Running(client, service)
            service._disk.index.check()

    return start
