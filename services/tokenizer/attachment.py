"""Attachment: one engine's ring, held by lease, and watched (B12-B14)."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hostless.v1 import engine_pb2
from services.fabric.errors import FabricError
from services.fabric.ring import EngineState, EngineStatus, Share
from services.fabric.transports import open_region
from services.gpu_backend.client import EngineCallError, EngineClient, EngineUnavailable, LeaseEnded
from services.tokenizer.pacing import PollSettings
from services.tokenizer.ring_driver import Attached, Deliver, Published, RingDriver, RingOnLoop
from services.tokenizer.ring_share import RingShare
from services.tokenizer.ring_thread import RingOnThread
from services.tokenizer.submission import RingRequest, Submitted


class AttachmentLost(Exception):
    """The engine's ring may no longer be touched; the message says why."""


@dataclass(frozen=True, slots=True)
class AttachmentSettings:
    """`lease_margin`: the last part of the lease, in which nothing is written, so that no write comes late.
    `stall_s`: how long the scheduler may stand still with requests in flight, and the ring may not answer."""

    lease_margin: float = 0.2
    stall_s: float = 15.0
    watch_s: float = 1.0
    tokens_per_poll: int = 8192
    poll: PollSettings = field(default_factory=PollSettings)


class Attachment:
    """Verbs: open, then run() in a task of the caller's, which ends when the engine is lost; close.

    submit(), cancel() and check() are for the event loop's thread and never wait. Of an engine that is lost, or is
    found to be by them, nothing is asked any more: run() says that it is.
    """

    def __init__(
        self,
        client: EngineClient,
        lease: engine_pb2.RingLease,
        share: RingShare,
        attached_at: float,
        deliver: Deliver,
        settings: AttachmentSettings,
        clock: Callable[[], float],
    ) -> None:
        """Use open()."""
        self._client = client
        self._lease_id = lease.lease_id
        self._ttl = lease.ttl_ms / 1000
        self._settings = settings
        self._clock = clock
        self._deadline = 0.0
        self._extend(attached_at)
        self._share = share
        ring = Attached(share, deliver, self._may_write, settings.poll, clock)
        self._driver: RingDriver = RingOnThread(ring) if share.region.mapped() is None else RingOnLoop(ring)
        self._ended = asyncio.Event()  # set with `lost`
        self.status = share.status
        self.lost: str | None = None

    @classmethod
    async def open(
        cls,
        client: EngineClient,
        front_end_id: str,
        deliver: Deliver,
        settings: AttachmentSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> "Attachment":
        """Leases a share of the engine's ring and maps it. Raises EngineCallError or FabricError."""
        before = clock()
        lease = await client.attach(front_end_id)
        try:  # on a thread: a network may be between
            share = await asyncio.to_thread(_open_share, lease, settings.tokens_per_poll)
        except BaseException:
            with suppress(EngineCallError):  # the lease ends by itself
                await client.detach(lease.lease_id)
            raise
        return cls(client, lease, share, before, deliver, settings, clock)

    @property
    def in_flight(self) -> int:
        return self._share.in_flight

    @property
    def accepting(self) -> bool:
        """Whether a submit now would be tried: not lost, and the engine serves as of the last look."""
        return self.lost is None and self.status.state is EngineState.SERVING

    def check(self, request: RingRequest) -> None:
        """Raises BadRequest or TooLarge for a request that this engine could never take."""
        self._share.check(request)

    def submit(self, requests: Sequence[RingRequest], published: Published) -> None:
        """Publishes as many requests as fit then, in order, and tells `published` which: now, or later where a network
        is between. Try the rest again when progress was delivered; one burst at a time. check() comes before."""
        try:
            self._may_write()
            self._driver.submit(requests, published)
        except (AttachmentLost, FabricError) as error:
            self._lose(str(error))

    def cancel(self, handles: Iterable[Submitted]) -> None:
        """Asks for the end of requests in flight; their last news comes as ever."""
        try:
            self._may_write()
            self._driver.cancel(handles)
        except (AttachmentLost, FabricError) as error:
            self._lose(str(error))

    async def run(self) -> list[Submitted]:
        """Polls, delivers, renews and watches until the engine is lost; `lost` says why.

        Answers the requests in flight, for which no more news will come, so that they may be retried.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._driver.run())
                tasks.create_task(self._keep_lease())
                tasks.create_task(self._keep_watch())
                tasks.create_task(self._until_lost())
        except* (AttachmentLost, FabricError) as group:
            self._lose(str(group.exceptions[0]))
        finally:
            self._driver.stop()
        return self._share.handles()

    async def close(self) -> None:
        """Gives the share back; what is still in flight is cancelled by the engine. Idempotent.

        Cancel the task of run() first.
        """
        if self.lost is None:
            self._lose("closed")
            with suppress(EngineUnavailable, LeaseEnded):  # the lease ends by itself
                await self._client.detach(self._lease_id)
        await self._driver.close()

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(min(self._ttl / 3, max(0.0, self._deadline - self._clock())))
            self._may_write()
            before = self._clock()
            try:
                self._ttl = await self._client.renew(self._lease_id, self._ttl / 3)
            except EngineUnavailable:
                continue  # the lease still runs: try again until it has run out
            except EngineCallError as error:
                raise AttachmentLost(str(error)) from error
            self._extend(before)

    async def _keep_watch(self) -> None:
        moved_at = self._clock()
        while True:
            await asyncio.sleep(self._settings.watch_s)
            before, self.status = self.status, await self._look()
            now = self._clock()
            if self.status.epoch != self._share.epoch:
                raise AttachmentLost(f"the engine restarted: epoch {self.status.epoch}, was {self._share.epoch}")
            if self.status.state in (EngineState.STOPPED, EngineState.FAILED):
                raise AttachmentLost(f"the engine has {self.status.state.name.lower()}")
            if self.status.heartbeat != before.heartbeat or not self._share.in_flight:
                moved_at = now
            elif now - moved_at > self._settings.stall_s:
                raise AttachmentLost(f"the scheduler has stood still for {now - moved_at:.1f} s")

    async def _look(self) -> EngineStatus:
        try:
            async with asyncio.timeout(self._settings.stall_s):
                return await self._driver.status()
        except TimeoutError:
            raise AttachmentLost(f"the ring has not answered for {self._settings.stall_s:g} s") from None

    async def _until_lost(self) -> None:
        await self._ended.wait()
        raise AttachmentLost(self.lost)

    def _extend(self, since: float) -> None:
        self._deadline = since + self._ttl * (1 - self._settings.lease_margin)

    def _may_write(self) -> None:
        """For any thread."""
        if self.lost is not None:
            raise AttachmentLost(self.lost)
        if self._clock() >= self._deadline:
            raise AttachmentLost("the lease ran out before the engine renewed it")

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._ended.set()


def _open_share(lease: engine_pb2.RingLease, tokens_per_poll: int) -> RingShare:
    return RingShare(open_region(lease.ring), share_of(lease), tokens_per_poll)


def share_of(lease: engine_pb2.RingLease) -> Share:
    return Share(
        lease.front_end,
        lease.slot_begin,
        lease.slot_count,
        lease.prompt_begin,
        lease.prompt_count,
        lease.token_begin,
        lease.token_count,
    )
