"""Chains of blocks with known bytes, a store in this process, and a store in a process of its own."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from services.common import rpc
from services.common.keys import next_key, root_key
from services.fabric.region import MemoryRegion
from services.kvstore.block import Block
from services.kvstore.client import StoreClient
from services.kvstore.engines import StorageEngine
from services.kvstore.engines.files.engine import FileEngine
from services.kvstore.engines.page import PAGE_BYTES
from services.kvstore.service import NAME, StoreService
from services.kvstore.settings import StoreSettings
from services.kvstore.store import open_store

LENGTH = 20_000
FULL = {"high_watermark": 1.0, "low_watermark": 1.0}
"""Nothing is evicted ahead of need, so that tests can count."""


def payload(block: Block) -> bytes:
    """Bytes that belong to the block's key alone."""
    return np.random.default_rng(int.from_bytes(block.key, "little")).bytes(block.length)


def chain(count: int, seed: int = 0, length: int = LENGTH, tenant: str = "") -> list[Block]:
    parent, blocks = root_key("test", tenant), []
    tokens = np.random.default_rng(seed).integers(0, 50_000, (count, 64)).astype("<u4")
    for position in range(count):
        key = next_key(parent, tokens[position])
        blocks.append(Block(key, parent, position, length, tokens[position].tobytes()))
        parent = key
    return blocks


def size(*blocks: Block) -> int:
    """What blocks take of the capacity of a store of files."""
    return sum(PAGE_BYTES + block.length for block in blocks)


async def put(client: StoreClient, blocks: list[Block]) -> list[str]:
    async with client.write(blocks) as batch:
        for at, block in enumerate(blocks):
            if not batch.reason(at):
                batch.fill(at, payload(block))
        return await batch.commit()


async def get(client: StoreClient, blocks: list[Block], region: MemoryRegion) -> int:
    """Blocks of the chain that can be read; their bytes are checked."""
    async with client.lease([block.key for block in blocks], 10) as hit:
        if not hit.hit:
            return 0
        length = blocks[0].length
        got = await client.read(hit.lease_id, 0, hit.hit, length, region.descriptor())
    for at, block in enumerate(blocks[: got.blocks]):
        assert region.view[at * length : (at + 1) * length].tobytes() == payload(block)
    return got.blocks


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


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setenv("HOSTLESS_SHM", str(folder))
    return folder


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
            yield Running(client, service)
            service._disk.index.check()

    return start


class StoreProcess:
    """A real store; `port` is where it serves."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port

    async def stderr(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@pytest.fixture
async def spawn(tmp_path: Path, shared_memory: Path) -> AsyncIterator[Callable[..., object]]:
    """await spawn(**settings): a store in its own process, killed at the end if it still runs."""
    running: list[StoreProcess] = []

    async def spawn(**changed: object) -> StoreProcess:
        settings = {"address": "127.0.0.1:0", "metrics_address": "", "path": tmp_path / "store", **changed}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.kvstore", *flags, stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
        )
        assert process.stderr is not None
        lines = []
        async with asyncio.timeout(30):
            while line := await process.stderr.readline():
                lines.append(line.decode())
                with contextlib.suppress(ValueError):
                    if json.loads(line).get("message") == "serving":
                        running.append(StoreProcess(process, json.loads(line)["port"]))
                        return running[-1]
        await process.wait()
        raise AssertionError(f"the store ended with {process.returncode}: {''.join(lines)}")

    yield spawn
    for store in running:
        await store.kill()
