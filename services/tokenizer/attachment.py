"""Attachment: one engine's ring, held by lease; the asyncio around the pure parts (B12-B14)."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from hostless.v1 import engine_pb2
from services.fabric.errors import FabricError
from services.fabric.remote_region import RemoteRegion
from services.fabric.ring import EngineState, RingClient, Share
from services.fabric.transports import open_region
from services.gpu_backend.client import EngineCallError, EngineClient, EngineUnavailable, LeaseEnded
from services.tokenizer.fine_timer import FineTimer
from services.tokenizer.pacing import AdaptivePoll, PollSettings
from services.tokenizer.reader import Progress, TokenReader
from services.tokenizer.slots import SlotTracker
from services.tokenizer.submission import RingRequest, Submitted, Submitter

Deliver = Callable[[list[Progress]], None]
"""Takes the news of one poll, all requests together. Must not block or raise."""


class AttachmentLost(Exception):
    """The engine's ring may no longer be touched; the message says why."""


@dataclass(frozen=True, slots=True)
class AttachmentSettings:
    """`lease_margin`: the last part of the lease, in which nothing is written, so that no write comes late.
    `stall_s`: how long the scheduler may stand still with requests in flight."""

    lease_margin: float = 0.2
    stall_s: float = 15.0
    watch_s: float = 1.0
    tokens_per_poll: int = 8192
    poll: PollSettings = field(default_factory=PollSettings)


class Attachment:
    """Verbs: open, then run() in a task of the caller's, which ends when the engine is lost; close.

    submit(), cancel() and check() are for the event loop's thread and never wait.
    """

    def __init__(
        self,
        client: EngineClient,
        lease: engine_pb2.RingLease,
        region: RemoteRegion,
        attached_at: float,
        deliver: Deliver,
        settings: AttachmentSettings,
        clock: Callable[[], float],
    ) -> None:
        """Use open()."""
        self._client = client
        self._lease_id = lease.lease_id
        self._ttl = lease.ttl_ms / 1000
        self._deliver = deliver
        self._settings = settings
        self._clock = clock
        self._deadline = 0.0
        self._extend(attached_at)
        self._ring = RingClient(region, share_of(lease))
        tracker = SlotTracker(lease.slot_begin, self._ring.read_words())
        self._submitter = Submitter(self._ring, tracker)
        self._reader = TokenReader(self._ring, self._submitter.release, settings.tokens_per_poll)
        self._work = asyncio.Event()
        self.status = self._ring.read_status()
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
        region = None
        try:
            region = await asyncio.to_thread(open_region, lease.ring)  # a network may be between
            return cls(client, lease, region, before, deliver, settings, clock)
        except BaseException:
            if region is not None:
                region.close()
            with suppress(EngineCallError):  # the lease ends by itself
                await client.detach(lease.lease_id)
            raise

    @property
    def in_flight(self) -> int:
        return self._reader.in_flight

    @property
    def accepting(self) -> bool:
        """Whether a submit now would be tried: not lost, and the engine serves as of the last look."""
        return self.lost is None and self.status.state is EngineState.SERVING

    def check(self, request: RingRequest) -> None:
        """Raises BadRequest or TooLarge for a request that this engine could never take."""
        self._submitter.check(request)

    def submit(self, requests: Sequence[RingRequest]) -> list[Submitted]:
        """Publishes as many requests as fit now, in order; try the rest again when progress was delivered.

        Raises BadRequest, TooLarge, or AttachmentLost, and then none of these requests will bring news.
        """
        self._may_write()
        try:
            handles = self._submitter.submit(requests, time.time_ns())
        except FabricError as error:
            raise self._lose(str(error)) from error
        self._reader.add(handles)
        self._work.set()
        return handles

    def cancel(self, handles: Iterable[Submitted]) -> None:
        """Asks for the end of requests in flight; their last news comes as ever. Raises AttachmentLost."""
        self._may_write()
        try:
            self._submitter.cancel(handles)
        except FabricError as error:
            raise self._lose(str(error)) from error

    async def run(self) -> list[Submitted]:
        """Polls, delivers, renews and watches until the engine is lost; `lost` says why.

        Answers the requests in flight, for which no more news will come, so that they may be retried.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_polling())
                tasks.create_task(self._keep_lease())
                tasks.create_task(self._keep_watch())
        except* (AttachmentLost, FabricError) as group:
            self._lose(str(group.exceptions[0]))
        return self._reader.handles()

    async def close(self) -> None:
        """Gives the share back; what is still in flight is cancelled by the engine. Idempotent.

        Cancel the task of run() first.
        """
        if self.lost is None:
            self.lost = "closed"
            with suppress(EngineUnavailable, LeaseEnded):  # the lease ends by itself
                await self._client.detach(self._lease_id)
        self._ring.close()

    async def _keep_polling(self) -> None:
        with closing(FineTimer()) as timer:
            await self._poll_with(timer)

    async def _poll_with(self, timer: FineTimer) -> None:
        pace, coarse = AdaptivePoll(self._settings.poll), self._settings.poll.busy_s
        while True:
            self._may_write()  # completion releases slots
            if not self._reader.in_flight:
                self._work.clear()
                await self._work.wait()
                pace.begin(self._clock())
                continue
            progress, more = self._reader.poll()
            if progress:
                self._deliver(progress)
            wait = pace.polled(self._clock(), bool(progress))
            if wait < coarse and not more:
                await timer.sleep(wait)
            else:
                await asyncio.sleep(0 if more else wait)

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
            before, self.status = self.status, self._ring.read_status()
            now = self._clock()
            if self.status.epoch != self._ring.epoch:
                raise AttachmentLost(f"the engine restarted: epoch {self.status.epoch}, was {self._ring.epoch}")
            if self.status.state in (EngineState.STOPPED, EngineState.FAILED):
                raise AttachmentLost(f"the engine has {self.status.state.name.lower()}")
            if self.status.heartbeat != before.heartbeat or not self._reader.in_flight:
                moved_at = now
            elif now - moved_at > self._settings.stall_s:
                raise AttachmentLost(f"the scheduler has stood still for {now - moved_at:.1f} s")

    def _extend(self, since: float) -> None:
        self._deadline = since + self._ttl * (1 - self._settings.lease_margin)

    def _may_write(self) -> None:
        if self.lost is not None:
            raise AttachmentLost(self.lost)
        if self._clock() >= self._deadline:
            raise self._lose("the lease ran out before the engine renewed it")

    def _lose(self, reason: str) -> AttachmentLost:
        self.lost = self.lost or reason
        self._work.set()  # wakes run()
        return AttachmentLost(self.lost)


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
