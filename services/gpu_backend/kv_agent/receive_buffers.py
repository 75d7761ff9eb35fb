"""Buffers of prompts that are prefilled elsewhere (the DE buffer of D2): who may touch them, and until when.

Peers of this machine are given a part of an arena, with a gate in front of it: when the prompt has ended its part is
not used again before nobody is behind the gate. Who comes over a network gets a region of his own, whose end is the end
of every right to it.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.gate import Gate
from services.fabric.hosting import RegionHost
from services.fabric.rights import Rights
from services.gpu_backend.cancellation import all_over, to_its_end
from services.gpu_backend.kv_agent.arenas import Arena, DeviceArena, HostArena, PeerPages
from services.gpu_backend.kv_agent.buffer_memory import BufferMemory, Share
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.pages import Blocks, PageNumbers, Pages
from services.gpu_backend.kv_agent.settings import AgentSettings

log = logging.getLogger(__name__)

LOOK_S = 0.01
"""Between two looks behind gates that are shut."""
LATE_S = 10.0
"""Who is behind a shut gate for so long is told of: a process that stands still, say."""
CLOSE_S = 1.0


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


@dataclass(slots=True)
class Leaving:
    """A buffer that has ended, and the share that is free once nobody touches it any more."""

    buffer: ReceiveBuffer
    share: Share
    since: float
    told: bool = False


class ReceiveBuffers:
    """Verbs: ready, make, unmake, let_go, run, close. `memory` is theirs: a share is given back by `let_go` alone."""

    def __init__(self, kv_pages: Pages, regions: RegionHost, name: str, settings: AgentSettings) -> None:
        """Raises OSError."""
        self._kv_pages, self._regions, self._name = kv_pages, regions, name
        self._arena: Arena | None = None
        size = settings.receive_buffer_bytes
        if settings.receive_on_device and isinstance(kv_pages, PeerPages):
            blocks = size // kv_pages.block_bytes
            self._arena = DeviceArena(kv_pages, blocks, settings.fill_bytes_s)
            size = blocks * kv_pages.block_bytes
        self.memory = BufferMemory(size)
        self._making = asyncio.Lock()
        self._leaving: list[Leaving] = []
        self._left = asyncio.Event()

    @property
    def late_bytes(self) -> int:
        """Of prompts that have ended, which somebody has not let go of for LATE_S. For any thread."""
        return sum(one.share.size for one in self._leaving if one.told)

    async def ready(self) -> None:
        """`make` may be called. Raises OSError."""
        async with self._making:
            if self._arena is None and self._regions.local:
                await to_its_end(self._make_host_arena)

    async def make(self, share: Share, blocks: int) -> ReceiveBuffer:
        """Of a share that is granted. Raises OSError."""
        if self._arena is None:
            return await self.of_its_own(blocks)
        gate = Gate(f"{self._name}.gate.{secrets.token_hex(6)}")
        return Part(self._arena, self._kv_pages.block_bytes, share.first, blocks, gate)

    async def of_its_own(self, blocks: int, before: ReceiveBuffer | None = None) -> OwnRegion:
        """For whoever can't reach an arena. Made on a thread: all of it is new memory. Raises OSError."""
        work = partial(OwnRegion, self._kv_pages, self._regions, self._name, blocks, before)
        making = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            await all_over([making])
        except asyncio.CancelledError:
            if not making.exception():
                self.unmake(making.result())
            raise
        return making.result()

    def unmake(self, buffer: ReceiveBuffer) -> None:
        """One that nobody was told of."""
        buffer.end()
        buffer.vacant(time.monotonic())

    def let_go(self, buffer: ReceiveBuffer | None, share: Share) -> None:
        """Ends the buffer; the share is free as soon as nobody touches it any more."""
        if buffer is not None:
            buffer.end()
            if not buffer.vacant(now := time.monotonic()):
                self._leaving.append(Leaving(buffer, share, now))
                self._left.set()
                return
        self.memory.give_back(share)

    def _make_host_arena(self) -> None:
        """Also for a caller that has gone meanwhile."""
        self._arena = HostArena(self._kv_pages, self._regions, self._name, self.memory.size)

    async def run(self) -> None:
        """As a task: looks after those that are left."""
        while True:
            await self._left.wait()
            self._left.clear()
            while self._leaving:
                await asyncio.sleep(LOOK_S)
                self._look()

    async def close(self) -> None:
        """At the end; nothing is made any more. Whoever is slower than a second to leave finds an arena without a
        name."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._leaving:
                    self._look()
                    await asyncio.sleep(LOOK_S)
        if self._arena is not None:
            self._arena.close()

    def _look(self) -> None:
        now = time.monotonic()
        still = []
        for one in self._leaving:
            if one.buffer.vacant(now):
                self.memory.give_back(one.share)
                continue
            still.append(one)
            if not one.told and now - one.since >= LATE_S:
                one.told = True
                log.warning(
                    "a prompt has ended, and its receive buffer is still held: does a prefill engine stand still?",
                    extra={
                        "bytes": one.share.size,
                        "gate": str(one.buffer.place.gate and one.buffer.place.gate.address),
                    },
                )
        self._leaving = still
