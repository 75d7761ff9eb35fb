"""What a decode engine says of its buffer is believed as far as it fits; all else is an error hand-overs expect."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.common import paths
from services.fabric.gate import Gate
from services.fabric.region import MemoryRegion
from services.fabric.remote_region import RemoteRegion
from services.fabric.rights import Rights
from services.fabric.transports import open_region
from services.gpu_backend.kv_agent import buffer_opener
from services.gpu_backend.kv_agent.buffer_opener import BufferOpener
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.layer_sender import FAILURES
from services.gpu_backend.kv_agent.pages import HostPages

LAYERS, BLOCK_BYTES, BLOCKS = 4, 4096, 16


@pytest.fixture
def regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, RegionDescriptor]]:
    monkeypatch.setattr(paths, "shm_dir", lambda: tmp_path)
    both, gate = Rights.READ | Rights.WRITE, Gate("gate")
    arena = MemoryRegion.create("arena", BLOCKS * BLOCK_BYTES, both)
    for_readers = MemoryRegion.create("for_readers", BLOCKS * BLOCK_BYTES, Rights.READ)
    little = MemoryRegion.create("little", 4, Rights.ATOMIC)
    (tmp_path / "link").symlink_to(gate.descriptor().address)
    (tmp_path / "foreign").write_bytes(bytes(8192))
    found = {made.path.name.removeprefix("hostless."): made.descriptor() for made in (arena, for_readers, little)}
    found["gate"] = gate.descriptor()
    for name in ("link", "foreign"):
        found[name] = RegionDescriptor.FromString(found["gate"].SerializeToString())
        found[name].address = str(tmp_path / name)
    yield found
    for region in (arena, for_readers, little):
        region.close()
    gate.close()


@pytest.fixture
def opener() -> Iterator[BufferOpener]:
    opener = BufferOpener(HostPages(np.zeros((8, BLOCK_BYTES), np.uint8), LAYERS), LAYERS, lambda engine: True)
    yield opener
    opener.close()


async def use(opener: BufferOpener, place: BufferPlace, hit: range = range(0)) -> None:
    pages, numbers = HostPages(np.zeros((8, BLOCK_BYTES), np.uint8), LAYERS), np.array([0, 1], np.uint32)

    async def ask(transfer: int, block_bytes: int, machine: str) -> tuple[BufferPlace, range]:
        return place, hit

    buffer, _ = await opener.open(1 << 40, ask)
    try:
        await buffer.blocks_from_pages(pages, [0, 1], numbers)
        await buffer.blocks_to_pages(pages, [0, 1], numbers)
    finally:
        await buffer.close()


async def test_what_fits(opener: BufferOpener, regions: dict[str, RegionDescriptor]) -> None:
    await use(opener, BufferPlace(regions["arena"], 4, (BLOCKS - 4) * BLOCK_BYTES, regions["gate"]), range(4))
    await use(opener, BufferPlace(regions["arena"], BLOCKS))


@pytest.mark.parametrize(
    ("region", "gate", "blocks", "first_byte"),
    [
        ("arena", "gate", 0, 0),
        ("arena", "", 0, 0),
        ("arena", "gate", BLOCKS + 1, 0),
        ("arena", "gate", 4, (BLOCKS - 3) * BLOCK_BYTES),
        ("arena", "gate", 1, 2**64 - BLOCK_BYTES),
        ("for_readers", "gate", 4, 0),
        ("for_readers", "", 4, 0),
        ("foreign", "gate", 0, 0),
        ("arena", "little", 4, 0),
        ("arena", "for_readers", 4, 0),
        ("arena", "link", 4, 0),
        ("arena", "foreign", 4, 0),
    ],
)
async def test_what_does_not(
    opener: BufferOpener, regions: dict[str, RegionDescriptor], region: str, gate: str, blocks: int, first_byte: int
) -> None:
    with pytest.raises(FAILURES):
        await use(opener, BufferPlace(regions[region], blocks, first_byte, regions[gate] if gate else None))


async def test_a_network_that_is_slow_keeps_no_other_buffer_waiting(
    opener: BufferOpener, regions: dict[str, RegionDescriptor], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(descriptor: RegionDescriptor) -> RemoteRegion:
        begun.set()
        assert go_on.wait(60)
        return open_region(descriptor)

    monkeypatch.setattr(buffer_opener, "open_region", slowly)
    slow = asyncio.create_task(use(opener, BufferPlace(regions["arena"], BLOCKS)))
    assert await asyncio.to_thread(begun.wait, 60)
    await use(opener, BufferPlace(regions["arena"], 4, 0, regions["gate"]))
    assert not slow.done()
    go_on.set()
    await slow
