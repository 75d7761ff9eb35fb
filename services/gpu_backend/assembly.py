"""Puts a loaded engine, its ring and its scheduler together."""

import time

from hostless.v1 import scheduler_pb2 as pb
from services.common.settings import SettingError
from services.fabric.errors import RegionInUse
from services.fabric.region import MemoryRegion
from services.fabric.ring import RingGeometry, RingOwner
from services.gpu_backend.backend import Backend
from services.gpu_backend.engine import PAGE_TOKENS, Engine
from services.gpu_backend.kv_agent import AgentSettings, KvAgent, RingPrompts
from services.gpu_backend.kv_link import KvLink
from services.gpu_backend.loading import context_of
from services.gpu_backend.scheduler.host import HostScheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings
from services.gpu_backend.settings import BackendSettings
from services.kvstore.client import StoreClient


def assemble(settings: BackendSettings, engine: Engine, port: int) -> Backend:
    """A backend, not yet started, for the service that listens on `port`. Raises SettingError."""
    engine_id = settings.name(port)
    pages = len(engine.kv_pages)
    max_context = min(context_of(settings, engine.geometry), pages * PAGE_TOKENS)
    ring = _create_ring(settings, engine_id, engine, max_context)
    try:
        scheduler = HostScheduler(
            ring.buffer,
            engine,
            SchedulerSettings(
                lanes=settings.batch,
                step_tokens=settings.step_tokens,
                pages=pages,
                watchdog_s=settings.step_limit_s,
                kv_orders=bool(settings.kvstore),
            ),
            max_context=max_context,
        )
    except BaseException:
        ring.region.close()
        raise
    kv_link = None
    if settings.kvstore:
        client = StoreClient(settings.kvstore)
        prompts, name = RingPrompts(ring), _region_name(engine_id)
        agent = KvAgent(scheduler.orders, prompts, engine.kv_pages, client, AgentSettings(), name)
        kv_link = KvLink(agent, client)
    info = pb.EngineInfo(
        engine_id=engine_id,
        address=settings.advertised(port),
        role=pb.ROLE_UNIFIED,
        model=settings.model,
        epoch=ring.epoch,
        page_tokens=PAGE_TOKENS,
        page_count=pages,
        max_context=max_context,
        vocab_size=engine.geometry.vocab,
        kv_layout=engine.geometry.kv_layout,
        model_path=str(settings.model_folder),
    )
    return Backend(settings, info, engine, ring, scheduler, kv_link)


def _create_ring(settings: BackendSettings, engine_id: str, engine: Engine, max_context: int) -> RingOwner:
    """A new ring in a region of its own, whose stale predecessor is removed."""
    geometry = RingGeometry(settings.slots, settings.prompt_words, settings.token_words)
    try:
        region = MemoryRegion.create(f"ring.{_region_name(engine_id)}", geometry.size_bytes)
    except RegionInUse as error:
        raise SettingError(f"engine-id: {engine_id!r} is taken: {error}") from None
    except OSError as error:
        what = f"no shared memory for a ring of {geometry.size_bytes} bytes: {error}"
        raise SettingError(f"slots, prompt-words, token-words: {what}") from None
    return RingOwner(
        region,
        geometry,
        epoch=time.time_ns(),
        max_context=max_context,
        vocab_size=engine.geometry.vocab,
        page_count=len(engine.kv_pages),
    )


def _region_name(engine_id: str) -> str:
    """As much of the id as the name of a file in memory can hold."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in engine_id)
