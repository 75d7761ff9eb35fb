"""One prompt's buffer on the decode side: a region of its own, or a part of an arena behind a gate."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.gate import Gate
from services.fabric.hosting import RegionHost
from services.fabric.rights import Rights
from services.gpu_backend.cancellation import to_its_end
from services.gpu_backend.kv_agent.arenas import Arena
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.pages import Blocks, PageNumbers, Pages


class ReceiveBuffer(Protocol):
    """Of one prompt: Full Blocks. Moves raise OSError, and what pages raise."""

    place: BufferPlace

    def store_target(self) -> RegionDescriptor | None:
        """What the store may write Full Blocks to in place, or None: they are `put`. Such a buffer has to end where a
        store may still be writing to it."""
        ...

    async def put(self, first: int, blocks: Blocks) -> None:
        """u8[blocks, block_bytes], into the blocks from `first` on."""
        ...

    async def get(self, first: int, into: Blocks) -> None: ...

    async def to_pages(self, first: int, pages: PageNumbers) -> None: ...

    def view(self, first: int, count: int) -> Blocks | None:
        """u8[count, block_bytes] where this process can touch them in place."""
        ...

    def end(self) -> None:
        """Nobody gets in any more. Idempotent."""
        ...

    def vacant(self, now: float) -> bool:
        """After `end`: nobody touches the memory any more."""
        ...


class OwnRegion:
    """A region, which ends with its prompt: a peer that writes late finds its right ended."""

    def __init__(
        self, kv_pages: Pages, regions: RegionHost, name: str, blocks: int, before: ReceiveBuffer | None = None
    ) -> None:
        """before: the one that this takes the place of. Raises OSError."""
        self._kv_pages, self._before = kv_pages, before
        length = blocks * kv_pages.block_bytes
        self._region = regions.create(f"{name}.{secrets.token_hex(6)}", length, Rights.READ | Rights.WRITE)
        self._memory = self._region.view.reshape(blocks, kv_pages.block_bytes)
        self.place = BufferPlace(self._region.descriptor(), blocks)

    def store_target(self) -> RegionDescriptor | None:
        return self._region.descriptor()

    async def put(self, first: int, blocks: Blocks) -> None:
        await to_its_end(lambda: np.copyto(self.view(first, len(blocks)), blocks))

    async def get(self, first: int, into: Blocks) -> None:
        await to_its_end(lambda: np.copyto(into, self.view(first, len(into))))

    async def to_pages(self, first: int, pages: PageNumbers) -> None:
        await self._kv_pages.write_from(pages, self.view(first, len(pages)))

    def view(self, first: int, count: int) -> Blocks:
        part: Blocks = self._memory[first : first + count]
        return part

    def end(self) -> None:
        self._region.close()

    def vacant(self, now: float) -> bool:
        return self._before is None or self._before.vacant(now)


class Part:
    """Of an arena, behind a gate."""

    def __init__(self, arena: Arena, block_bytes: int, first_byte: int, blocks: int, gate: Gate) -> None:
        self._arena, self._block_bytes, self._gate = arena, block_bytes, gate
        self._moving = 0  # of this process's own, which may have been given up
        self.place = BufferPlace(arena.descriptor, blocks, first_byte, gate.descriptor())

    def store_target(self) -> RegionDescriptor | None:
        return None

    async def put(self, first: int, blocks: Blocks) -> None:
        with self._touching():
            await self._arena.put(self._at(first), blocks)

    async def get(self, first: int, into: Blocks) -> None:
        with self._touching():
            await self._arena.get(self._at(first), into)

    async def to_pages(self, first: int, pages: PageNumbers) -> None:
        with self._touching():
            await self._arena.to_pages(self._at(first), pages)

    def view(self, first: int, count: int) -> Blocks | None:
        return self._arena.view(self._at(first), count)

    def end(self) -> None:
        self._gate.shut()

    def vacant(self, now: float) -> bool:
        if self._moving or not self._gate.vacant(now):
            return False
        self._gate.close()
        return True

    @contextmanager
    def _touching(self) -> Iterator[None]:
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1

    def _at(self, block: int) -> int:
        return self.place.first_byte + block * self._block_bytes
