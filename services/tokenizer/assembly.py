"""The parts of a running tokenizer, put together and taken apart again."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from prometheus_client import CollectorRegistry

from services.common import metrics, rpc
from services.global_scheduler.client import SchedulerClient
from services.kvstore.client import StoreClient
from services.tokenizer import model_text
from services.tokenizer.attachment import AttachmentSettings
from services.tokenizer.attempt import Attempts
from services.tokenizer.conductor import Conductor
from services.tokenizer.encoding import EncodingPool
from services.tokenizer.engine_pool import EnginePool
from services.tokenizer.kv_hits import KvHits
from services.tokenizer.live_engines import LiveEngines
from services.tokenizer.metrics import Metrics
from services.tokenizer.model_shelf import ModelShelf
from services.tokenizer.pacing import PollSettings
from services.tokenizer.placement import Placer
from services.tokenizer.service import NAME, FrontendService
from services.tokenizer.settings import TokenizerSettings

log = logging.getLogger(__name__)

SESSION_GRACE_S = 0.5  # sessions end only when cut; their last deltas are on the way


class Tokenizer:
    """A tokenizer that serves. What tests and metrics look at is public."""

    def __init__(self, settings: TokenizerSettings, scheduler: SchedulerClient, store: StoreClient | None) -> None:
        read = partial(model_text.load, tool_format=settings.tool_format, own_sampling=settings.model_sampling)
        self.live, self.shelf = LiveEngines(), ModelShelf(read)
        self.encoding = EncodingPool(settings.encode_threads)
        poll = PollSettings(settings.poll_busy_s, settings.poll_idle_s)
        attachment = AttachmentSettings(stall_s=settings.stall_s, poll=poll)
        self.pool = EnginePool(self.live, settings.front_end_id, attachment)
        self.placer = Placer(scheduler, self.live, self.pool.usable, settings.engine_wait_s, settings.schedule_s)
        self.kv = KvHits(store, settings.kv_lookup_s, settings.kv_lease_s)
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, self._gauges, self._counts)
        conductor = Conductor(
            self.live,
            self.shelf,
            self.encoding,
            self.kv,
            self.placer,
            Attempts(self.pool, self.metrics, settings.engine_wait_s),
            self.metrics,
            settings.engine_wait_s,
        )
        self.service = FrontendService(
            conductor, self.live, self.shelf, self.pool, settings.max_requests, settings.max_unsent_deltas
        )
        self.port = 0
        self._grace_s = settings.grace_s
        self._server: rpc.RpcServer | None = None

    async def drain(self) -> None:
        """No new requests from here on; returns when those under way have ended, or the grace time has."""
        service = self.service
        service.draining = True
        if self._server:
            await self._server.set_serving(False)
        log.info("draining", extra={"requests": service.running})
        try:
            async with asyncio.timeout(self._grace_s):
                await service.idle.wait()
        except TimeoutError:
            log.warning("cut off", extra={"requests": service.running})

    @asynccontextmanager
    async def serving(self, address: str) -> AsyncIterator[None]:
        """All tasks and the gRPC server run within; sessions that are left are cut at the end."""
        jobs = (self.placer.watch(), self.placer.run(), self.pool.run(), self.service.preload())
        async with asyncio.TaskGroup() as tasks:
            owned = [tasks.create_task(job) for job in jobs]
            try:
                async with rpc.serve(address, self.service.register, [NAME], SESSION_GRACE_S) as self._server:
                    self.port = self._server.port
                    yield
            finally:
                for task in owned:
                    task.cancel()

    async def close(self) -> None:
        await self.shelf.close()
        self.encoding.close()

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        """Runs on the exporter's thread, so it reads copies."""
        links, sessions = list(self.pool.links.values()), list(self.service.sessions)
        yield "requests_running", "Requests under way.", self.service.running
        yield "sessions", "Gateways connected.", len(sessions)
        yield "unsent_deltas", "Deltas that gateways have not taken.", sum(session.unsent for session in sessions)
        yield "engines_attached", "Engines whose ring is attached.", len(links)
        yield "slots_in_use", "Slots that hold a request of this front end.", sum(link.flights for link in links)
        yield "slots_wanted", "Requests that wait for a slot.", sum(link.waiting for link in links)

    def _counts(self) -> Iterable[tuple[str, str, float]]:
        yield "ring_polls_with_news", "Polls of rings that brought tokens.", self.pool.polls
        yield "session_messages", "gRPC messages to gateways.", self.service.messages
        yield "placed_without_scheduler", "Requests placed by the last table.", self.placer.fallbacks
        yield "kv_lookups", "Prompts looked up in the KV store.", self.kv.lookups
        yield "kv_lookups_failed", "Lookups that the store did not answer in time.", self.kv.failures


@asynccontextmanager
async def running(settings: TokenizerSettings) -> AsyncIterator[Tokenizer]:
    """A tokenizer that serves until the block ends. Drain it before. Raises PortTaken."""
    async with AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(SchedulerClient(settings.scheduler))
        store = await stack.enter_async_context(StoreClient(settings.kvstore)) if settings.kvstore else None
        tokenizer = Tokenizer(settings, scheduler, store)
        stack.push_async_callback(tokenizer.close)
        stack.enter_context(metrics.serve(settings.metrics_address, tokenizer.registry))
        await stack.enter_async_context(tokenizer.serving(settings.address))
        log.info("serving", extra={"port": tokenizer.port, "front_end": settings.front_end_id})
        yield tokenizer
