"""A peer that cuts the file short which it shares with the store: that costs the peer its answer, not the store."""

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.fabric.region import MemoryRegion
from services.kvstore import _segments
from services.kvstore.client import StoreClient

PAGE = mmap.PAGESIZE


@pytest.fixture
def shared(tmp_path: Path) -> Any:
    """A mapped file of four pages, and its path."""
    path = tmp_path / "shared"
    path.write_bytes(b"x" * 4 * PAGE)
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 4 * PAGE)
    return path, memoryview(mapping)


def test_guarded_memory_reads_as_zeros_where_it_was_lost(shared: Any) -> None:
    path, memory = shared
    assert _segments.guard(memory[PAGE:])  # and the page before it
    os.truncate(path, 2 * PAGE)
    assert bytes(memory) == b"x" * 2 * PAGE + bytes(2 * PAGE)
    memory[3 * PAGE] = 7
    os.truncate(path, 0)
    assert bytes(memory) == bytes(3 * PAGE) + b"\7" + bytes(PAGE - 1)
    _segments.unguard(memory[PAGE:])
    _segments.unguard(memory[PAGE:])


@pytest.mark.parametrize("what", ["memory[0]", "os.kill(os.getpid(), 7)"])
def test_all_else_ends_the_process_as_ever(tmp_path: Path, what: str) -> None:
    """Memory that is guarded no more, and a signal that somebody sends."""
    path = tmp_path / "shared"
    path.write_bytes(bytes(4 * PAGE))
    program = f"""
import mmap, os
from services.kvstore import _segments
file = os.open({str(path)!r}, os.O_RDWR)
memory = memoryview(mmap.mmap(file, {4 * PAGE}))
for _ in range(2000):
    assert _segments.guard(memory[{PAGE}:])
    _segments.unguard(memory[{PAGE}:])
os.truncate(file, 0)
{what}
"""
    assert signal.SIGBUS == 7
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == -signal.SIGBUS


@pytest.mark.parametrize("left", [0, PAGE, 3 * PAGE])
@pytest.mark.parametrize("engine", ["files", "local"])
async def test_a_reader_that_cuts_its_region_short(spawn: Any, tools: Any, engine: str, left: int) -> None:
    blocks = tools.chain(4, length=PAGE * 4)
    store = await spawn(engine=engine)
    async with StoreClient(store.address) as client:
        assert await tools.put(client, blocks) == [""] * 4
        hit = await client.lookup([block.key for block in blocks], 30)
        with MemoryRegion.create("cut", 16 * PAGE) as region:
            target = region.descriptor()
            assert (await client.read(hit.lease_id, 0, 4, PAGE * 4, target)).blocks == 4
            os.truncate(target.address, left)
            got = await client.read(hit.lease_id, 0, 4, PAGE * 4, target)
            assert got.blocks < 4
            assert got.reason
            os.truncate(target.address, 17 * PAGE)  # so that this process can end it
        with MemoryRegion.create("whole", 16 * PAGE) as region:
            assert await tools.get(client, blocks, region) == 4
        assert (await client.stats()).blocks_corrupt == 0


async def test_a_writer_that_cuts_the_write_buffer_short(spawn: Any, tools: Any) -> None:
    store = await spawn(engine="local")
    blocks = tools.chain(4)
    async with StoreClient(store.address) as client:
        assert await tools.put(client, blocks[:2]) == ["", ""]
        async with client.write(blocks[2:]) as batch:
            buffer = batch._region.descriptor.address
            size = os.stat(buffer).st_size
            for at in range(2):
                batch.fill(at, tools.payload(blocks[2 + at]))
            os.truncate(buffer, PAGE)
            assert await batch.commit() == ["payload checksum differs"] * 2
            os.truncate(buffer, size)  # so that this process can end it
        assert (await client.lookup([block.key for block in blocks])).hit == 2
