"""Who touches an attached ring, and when: the event loop one in this host's memory, a thread one behind a network."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from services.fabric.ring import EngineStatus
from services.tokenizer.fine_timer import FineTimer
from services.tokenizer.pacing import AdaptivePoll, PollSettings
from services.tokenizer.reader import Progress
from services.tokenizer.ring_share import RingShare
from services.tokenizer.submission import RingRequest, Submitted

Deliver = Callable[[list[Progress]], None]
"""Takes the news of one poll, all requests together. Must not block or raise."""

Published = Callable[[list[Submitted]], None]
"""Takes those of a burst that found a place. Called on the event loop, before any news of them."""

MayWrite = Callable[[], None]
"""Raises when the lease no longer lets this front end write. For any thread."""


@dataclass(frozen=True, slots=True)
class Attached:
    """What a driver works with: a share of a ring, whom it tells, whether it may write, and when it looks."""

    share: RingShare
    deliver: Deliver
    may_write: MayWrite
    pace: PollSettings
    clock: Callable[[], float]


class RingDriver(Protocol):
    """All methods are for the event loop, which never waits for a network. After stop(), nothing is told any more."""

    def submit(self, requests: Sequence[RingRequest], published: Published) -> None:
        """One burst at a time: the next when `published` was called."""
        ...

    def cancel(self, handles: Iterable[Submitted]) -> None: ...

    async def status(self) -> EngineStatus:
        """What the engine says of itself now."""
        ...

    async def run(self) -> None:
        """Polls while requests are in flight, until it fails. Raises FabricError, or what `may_write` raises."""
        ...

    def stop(self) -> None:
        """Idempotent."""
        ...

    async def close(self) -> None:
        """Stops, and returns when the ring is closed, or is given up with an error in the log. Idempotent."""
        ...


class RingOnLoop:
    """For shared memory, where an operation is a few instructions: each is done at once, and raises at once."""

    def __init__(self, ring: Attached) -> None:
        self._ring, self._share = ring, ring.share
        self._work = asyncio.Event()

    def submit(self, requests: Sequence[RingRequest], published: Published) -> None:
        published(self._share.submit(requests))
        self._work.set()

    def cancel(self, handles: Iterable[Submitted]) -> None:
        self._share.cancel(handles)

    async def status(self) -> EngineStatus:
        return self._share.read_status()

    async def run(self) -> None:
        with closing(FineTimer()) as timer:
            await self._poll_with(timer)

    def stop(self) -> None:
        """Nothing runs but by calls."""

    async def close(self) -> None:
        self._share.close()

    async def _poll_with(self, timer: FineTimer) -> None:
        ring = self._ring
        pace, coarse = AdaptivePoll(ring.pace), ring.pace.busy_s
        while True:
            ring.may_write()  # completion releases slots
            if not self._share.in_flight:
                self._work.clear()
                await self._work.wait()
                pace.begin(ring.clock())
                continue
            progress, more = self._share.poll()
            if progress:
                ring.deliver(progress)
            wait = pace.polled(ring.clock(), bool(progress))
            if wait < coarse and not more:
                await timer.sleep(wait)
            else:
                await asyncio.sleep(0 if more else wait)
