"""What a prefill engine has open of decode engines that come and go: unmapped with them, else bounded."""

import asyncio
import contextlib
import fcntl
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.common import paths
from services.fabric import region_file
from services.fabric.errors import NotARegion, StaleRegion
from services.fabric.region import MemoryRegion
from services.fabric.rights import Rights
from services.gpu_backend.kv_agent import sender
from services.gpu_backend.kv_agent.buffer_place import ON_DEVICE, RegionDescriptor
from services.gpu_backend.kv_agent.opened_arenas import MOST_LEFT, OpenedArenas
from services.gpu_backend.kv_agent.pages import Blocks, HostPages
from services.gpu_backend.kv_agent.remote_buffer import RemoteBuffer
from tests.gpu_backend.kv_agent.fake_device import SHARED, FakeDevicePages
from tests.gpu_backend.kv_agent.test_transfers import BLOCK_BYTES, LAYERS, PAGES, pair
from tests.waiting import until

RIGHTS = Rights.READ | Rights.WRITE
SIZE = 8 * BLOCK_BYTES


class BesideAScheduler(FakeDevicePages):
    """What was pinned stays so."""

    def __init__(self) -> None:
        super().__init__(np.zeros((PAGES, BLOCK_BYTES), np.uint8), LAYERS)
        self.pinned: list[Blocks] = []

    def pin(self, memory: Blocks) -> None:
        self.pinned.append(memory)

    def unpin(self, memory: Blocks) -> bool:
        return not any(memory.ctypes.data == other.ctypes.data for other in self.pinned)


@contextlib.contextmanager
def decode_engine(life: int, dies: bool = False) -> Iterator[RegionDescriptor]:
    region = MemoryRegion.create(f"arena.{life}", SIZE, RIGHTS)
    try:
        yield region.descriptor()
    finally:
        if dies:
            fcntl.flock(region._fd, fcntl.LOCK_UN)  # as the kernel does at a process's end
        else:
            region.close()


def mapped() -> list[str]:
    """Regions of this test that this process maps, as a peer or as owner."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if f"{paths.shm_dir()}/" in line]


@pytest.mark.parametrize("dies", [False, True])
def test_memory_of_engines_that_are_gone_is_unmapped(dies: bool) -> None:
    arenas = OpenedArenas(HostPages(np.zeros((PAGES, BLOCK_BYTES), np.uint8)), lambda engine: True)
    for life in range(3):
        with decode_engine(life, dies) as place:
            arena = arenas.host(place)
            assert arenas.host(place) is arena, "it is opened once"
            gone = weakref.ref(arena)
            del arena
        assert gone() is not None
        arenas.let_go()
        assert gone() is None
        assert not mapped()
    assert not list(paths.shm_dir().iterdir()), "who died leaves no file"
    assert arenas.left_bytes == 0
    arenas.close()


def test_who_lives_is_left_alone() -> None:
    arenas = OpenedArenas(HostPages(np.zeros((PAGES, BLOCK_BYTES), np.uint8)), lambda engine: False)
    with decode_engine(1) as place:
        arena = arenas.host(place)
        arenas.let_go()
        assert arenas.host(place) is arena
        arenas.close()


def test_who_lives_is_left_alone_when_files_can_not_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(path: Path, writable: bool = True) -> int:
        raise NotARegion(f"can't open region {path}: Too many open files")

    arenas = OpenedArenas(HostPages(np.zeros((PAGES, BLOCK_BYTES), np.uint8)), lambda engine: True)
    with decode_engine(1) as place:
        arena = arenas.host(place)
        with monkeypatch.context() as m:
            m.setattr(region_file, "open_file", no_more)
            arenas.let_go()
        assert arenas.host(place) is arena
        arenas.close()


def test_pinned_memory_that_stays_is_bounded_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    pages = BesideAScheduler()
    arenas = OpenedArenas(pages, lambda engine: True)
    for life in range(MOST_LEFT + 3):
        with decode_engine(life) as place:
            assert arenas.host(place).mapped() is not None
        arenas.let_go()
        assert arenas.left_bytes == min(life + 1, MOST_LEFT) * SIZE
    assert len(pages.pinned) == MOST_LEFT, "then memory is used as it is, and unmapped with its engine"
    assert caplog.text.count("stays pinned") == MOST_LEFT
    arenas.close()


def test_memory_of_gpus_that_stays_open_is_bounded() -> None:
    living: set[int] = set()
    pages = BesideAScheduler()
    arenas = OpenedArenas(pages, living.__contains__)

    def opened(life: int) -> int:
        living.add(life)
        memory = pages.share(8)
        place = RegionDescriptor(transport=ON_DEVICE, address=memory.handle.hex(), length=SIZE)
        assert arenas.device(place, life) == arenas.device(place, life) == SHARED[memory.handle].ctypes.data
        return life

    for life in range(2 * MOST_LEFT):
        opened(life)  # as many as there are may live
    assert arenas.left_bytes == 0
    living -= set(range(MOST_LEFT))
    assert arenas.left_bytes == MOST_LEFT * SIZE
    with pytest.raises(OSError, match=f"memory of {MOST_LEFT} decode engines that have ended"):
        opened(100)
    living.add(0)  # it was only not heard of
    opened(101)


@pytest.mark.parametrize("told", [True, False])
async def test_who_has_ended_is_let_go_of_without_a_hand_over(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """When engines come or go; or later, where the engine left the table first, and ended then."""
    if not told:
        monkeypatch.setattr(sender, "LOOK_S", 0.01)
    async with pair() as p:
        p.expect()
        p.send()
        assert await p.answer(p.prefill, 1) == 4
        buffer = p.sender._handovers[1, 1].buffer
        p.sender.forget(1, 1)
        opened = p.sender._opener._arenas._hosts
        (arena,) = opened.values()
        p.receiver.forget(2, 1)
        assert p.receiver._buffers._arena is not None
        p.receiver._buffers._arena.close()
        if told:
            await asyncio.sleep(0)
            assert opened
            p.changed, changed = asyncio.Event(), p.changed
            changed.set()
        await until(lambda: not opened)
        assert not arena.mapped()
        assert isinstance(buffer, RemoteBuffer)
        assert buffer._mapped is None, "garbage that is not collected yet keeps nothing mapped"
        numbers = np.zeros(1, np.uint32)
        for move in (buffer.blocks_from_pages, buffer.blocks_to_pages):
            with pytest.raises(StaleRegion):
                await move(p.prefill.kv_pages, [0], numbers)
        with pytest.raises(StaleRegion):
            await buffer.fetch_layer(0, [0])
