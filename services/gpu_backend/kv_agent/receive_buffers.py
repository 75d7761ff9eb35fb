"""Buffers of prompts that are prefilled elsewhere (the DE buffer of D2): who may touch them, and until when.

Peers of this machine are given a part of an arena, with a gate in front of it: when the prompt has ended its part is
not used again before nobody is behind the gate. Who comes over a network gets a region of his own, whose end is the end
of every right to it.
"""

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from services.fabric.gate import Gate
from services.fabric.hosting import RegionHost
from services.gpu_backend.cancellation import all_over, to_its_end
from services.gpu_backend.kv_agent.arenas import Arena, DeviceArena, HostArena, PeerPages
from services.gpu_backend.kv_agent.buffer_memory import BufferMemory, Share
from services.gpu_backend.kv_agent.pages import Pages
from services.gpu_backend.kv_agent.receive_buffer import OwnRegion, Part, ReceiveBuffer
from services.gpu_backend.kv_agent.settings import AgentSettings

log = logging.getLogger(__name__)

LOOK_S = 0.01
"""Between two looks behind gates that are shut."""
LATE_S, LATE_LOOK_S = 10.0, 0.5
"""Who is behind a shut gate for so long stands still, maybe for ever: he is told of, his part is written off, and is
looked at less often."""
CLOSE_S = 1.0


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
        if self._arena is None or share.apart:
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
                making.result().end()
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
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._left.wait()
            self._left.clear()
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

    def _pause(self) -> float | None:
        """Until the next look; None: until a buffer is left."""
        if not self._leaving:
            return None
        return LATE_LOOK_S if all(one.told for one in self._leaving) else LOOK_S

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
                self.memory.write_off(one.share)
                log.warning(
                    "a prompt has ended, and its receive buffer is still held: does a prefill engine stand still? "
                    "As much memory is used elsewhere until it goes on, or is ended",
                    extra={
                        "bytes": one.share.size,
                        "gate": str(one.buffer.place.gate and one.buffer.place.gate.address),
                    },
                )
        self._leaving = still
