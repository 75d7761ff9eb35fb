"""One engine at work: its ring, its scheduler, its leases, its leader; and how they start, drain and end."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from hostless.v1 import scheduler_pb2 as pb
from services.fabric.ring import EngineState
from services.gpu_backend.kv_link import KvLink
from services.gpu_backend.leader import Leader
from services.gpu_backend.leases import Lease, LeaseTable
from services.gpu_backend.reports import RingLoad, StoreTraffic, make_report, read_load, unfinished
from services.gpu_backend.scheduler.interface import SchedulerLost
from services.gpu_backend.serving import Served
from services.gpu_backend.settings import BackendSettings
from services.gpu_backend.watchdog import Watchdog

log = logging.getLogger(__name__)

BUSY_LOOK_S = 0.25
IDLE_LOOK_S = 1.0
DRAIN_LOOK_S = 0.02
TELL_S = 1.0
STOP_S = 2.0  # for a step in flight


class NotServing(Exception):
    """The engine takes no new front end now; the message says why."""


class RoleRefused(Exception):
    """The engine can't take the role; the message says why."""


class EngineFailed(RuntimeError):
    """The scheduler gave the engine up; the process has to start anew."""


class Backend:
    """Everything of one loaded engine: `run` as a task, then `drain`, then `close`."""

    def __init__(self, settings: BackendSettings, info: pb.EngineInfo, served: Served, kv_link: KvLink | None) -> None:
        ring = served.ring
        self.settings = settings
        self.region = ring.region
        self.info = info
        self.scheduler = served.scheduler
        self.kv_link = kv_link
        self.leases = LeaseTable(ring, settings.lease_ttl_ms / 1000, settings.lease_grace_ms / 1000, time.monotonic)
        self.leader = Leader(
            settings.scheduler,
            settings.group_id or info.engine_id,
            info,
            self.report,
            settings.report_ms / 1000,
            settings.idle_report_ms / 1000,
        )
        self._closing = served.closing
        self._ring = ring
        self._watchdog = Watchdog(settings.patience_s, time.monotonic)
        self._draining = False
        self.stuck = ""

    # --- state ---

    @property
    def refusal(self) -> str:
        """Why the engine takes nothing new; empty when it does."""
        return "the engine is draining" if self._draining else self.stuck

    def load(self) -> RingLoad:
        """What the ring holds now. Safe for any thread."""
        return read_load(self._ring)

    def report(self, anew: bool) -> pb.EngineReport:
        """`anew`: to somebody who knows nothing yet."""
        store = self.kv_link.traffic(anew) if self.kv_link else StoreTraffic()
        counters, accepting = self.scheduler.counters(), not self.refusal
        return make_report(self.info.engine_id, self.load(), counters, store, accepting)

    # --- leases ---

    def attach(self, front_end_id: str) -> Lease:
        """Raises NotServing or NoPlace."""
        if self.refusal:
            raise NotServing(self.refusal)
        return self.leases.attach(front_end_id)

    # --- life ---

    async def run(self, set_serving: Callable[[bool], Awaitable[None]]) -> None:
        """Serves until cancelled; `close` is the caller's to await in any case.

        `set_serving` is told when the engine starts or stops to take requests. Raises EngineFailed.
        """
        self.scheduler.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.leader.run())
            tasks.create_task(self._tend(set_serving))
            if self.kv_link:
                tasks.create_task(self.kv_link.agent.run())

    async def _tend(self, set_serving: Callable[[bool], Awaitable[None]]) -> None:
        """Ends late leases and looks whether the engine gets on."""
        serving = False
        while True:
            load = self.load()
            for lease in self.leases.tick():
                log.warning("lease ran out", extra={"front_end": lease.front_end_id, "place": lease.share.front_end})
            self._look(load)
            if serving is bool(self.refusal):
                serving = not serving
                await set_serving(serving)
            idle = self.leases.settled and not load.requests
            await asyncio.sleep(IDLE_LOOK_S if idle else BUSY_LOOK_S)

    async def change_role(self, role: pb.Role, timeout_s: float) -> tuple[int, bool]:
        """Requests come by the new role from now on, those under way end as they are: the ring takes all kinds of them
        at any time, and only who places them looks at roles. A restart brings the setting's role back.

        Returns how many of the old ones are unfinished when the time is up, and whether the global scheduler knows.
        Raises RoleRefused.
        """
        if role != pb.ROLE_UNIFIED and self.kv_link is None:
            raise RoleRefused("an engine without a KV store serves whole requests only: start it with --kvstore")
        if role != pb.ROLE_PREFILL and self.settings.kv_layers_resident:
            raise RoleRefused("its KV pages hold a few layers at a time (--kv-layers-resident): it can only prefill")
        give_up = time.monotonic() + timeout_s
        if self.kv_link:
            self.kv_link.take_role(role)
        changed = pb.EngineInfo()
        changed.CopyFrom(self.info)
        changed.role = role
        self.info = changed
        self.leader.introduce(self.info)
        told = await self.leader.tell_now(min(TELL_S, timeout_s))
        begun = unfinished(self._ring)
        log.info("another role", extra={"role": pb.Role.Name(role), "begun": len(begun), "announced": told})
        while left := begun & unfinished(self._ring):
            if time.monotonic() >= give_up:
                break
            await asyncio.sleep(DRAIN_LOOK_S)
        return len(left), told

    async def drain(self, timeout_s: float) -> int:
        """No new requests; waits until the running ones have ended, their front ends have read them, and their
        KV blocks are stored.

        Returns how many are unfinished when the time is up. May be called again.
        """
        give_up = time.monotonic() + timeout_s
        if not self._draining:
            self._draining = True
            log.info("draining", extra={"unfinished": self.load().requests})
            if not await self.leader.tell_now(min(TELL_S, timeout_s)):
                log.warning("the global scheduler was not told of the draining")
            self.scheduler.drain()
        while (load := self.load()).requests or self._owes(load):
            if time.monotonic() >= give_up:
                log.warning("drained in part", extra={"unfinished": load.requests, "unread": self._unread(load)})
                break
            await asyncio.sleep(DRAIN_LOOK_S)
        return load.requests

    async def close(self) -> None:
        """Ends leases, scheduler, ring and engine; what still ran is lost.

        Raises TimeoutError if a step won't end: then everything stays, since it may still be written to.
        """
        self._draining = True
        self.leases.end_all()
        if self.kv_link:
            await self.kv_link.close()
        try:
            await asyncio.to_thread(self.scheduler.stop, STOP_S)
        except SchedulerLost as lost:
            log.error("the scheduler was gone before it was stopped", extra={"why": str(lost)})
        self._closing.close()

    def _look(self, load: RingLoad) -> None:
        if self._ring.engine_state is EngineState.FAILED:
            raise EngineFailed("the scheduler gave the engine up: a step did not end in time")
        try:
            self.scheduler.tend()
        except SchedulerLost as lost:
            raise EngineFailed(str(lost)) from lost
        counters = self.scheduler.counters()
        moved = counters["claims"] + counters["finished"] + counters["prefill_launches"] + counters["decode_launches"]
        stuck = self._watchdog.look(self._ring.heartbeat, moved, load.requests - load.prefilled_elsewhere)
        if bool(stuck) != bool(self.stuck):
            log.log(logging.ERROR if stuck else logging.INFO, stuck or "the engine moves again")
            self.stuck = stuck
            self.leader.tell_soon()
        self.stuck = stuck

    def _owes(self, load: RingLoad) -> bool:
        """Whether somebody still waits for what ended requests left behind."""
        unread = bool(self._unread(load) and self.leases.held)
        return unread or bool(self.kv_link and not self.kv_link.agent.idle)

    def _unread(self, load: RingLoad) -> int:
        """Slots that are complete and wait for their front end."""
        return sum(load.slot_states) - load.slot_states[0] - load.requests
