"""From settings to an engine that could start: kit, KV pages, ring, scheduler. Runs in a thread."""

import contextlib
import logging
import threading
import time
from dataclasses import dataclass

from services.common import paths
from services.common.settings import SettingError
from services.fabric.errors import FabricError, RegionInUse
from services.fabric.hosting import RegionHost, open_host
from services.fabric.rights import Rights
from services.fabric.ring import RingGeometry, RingOwner
from services.gpu_backend.device.toolchain import BuildFailed, ToolchainMissing
from services.gpu_backend.engine import PAGE_TOKENS, EngineError, ModelGeometry
from services.gpu_backend.kits import EngineKit
from services.gpu_backend.kv_agent import LoopbackPages, Pages
from services.gpu_backend.loading import LoadingProgress, load_kit
from services.gpu_backend.scheduler.interface import Scheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings
from services.gpu_backend.settings import BackendSettings

log = logging.getLogger(__name__)

UNFIT = (EngineError, ToolchainMissing, BuildFailed)
"""What a kit raises where this machine, or its memory, does not suffice."""


@dataclass(frozen=True)
class Served:
    """A scheduler that is not started, and what it serves. `closing.close()`, after its stop, gives all back.

    kv_pages: for a KV agent; None without a store.
    """

    geometry: ModelGeometry
    pages: int
    max_context: int
    ring: RingOwner
    scheduler: Scheduler
    kv_pages: Pages | None
    region_name: str
    regions: RegionHost
    closing: contextlib.ExitStack


def prepare(settings: BackendSettings, engine_id: str, stop: threading.Event) -> Served:
    """Loads, allocates and captures.

    Raises SettingError when the model is not there or can't be read, memory doesn't suffice, or settings
    contradict what is there; LoadingStopped soon after `stop` is set.
    """
    progress = LoadingProgress(settings.model, stop)
    with contextlib.ExitStack() as stack:
        kit = load_kit(settings, progress)
        stack.callback(kit.close)
        pages = _pages(settings, kit)
        max_context = min(context_of(settings, kit.geometry), pages * PAGE_TOKENS)
        core = SchedulerSettings(
            lanes=settings.batch,
            step_tokens=settings.most_step_tokens,
            prefill_chunk=settings.prefill_chunk,
            mixed_tokens=settings.most_mixed_tokens,
            attention_time=settings.attention_seconds,
            attention_quota_s=settings.attention_quota_ms / 1e3,
            pages=pages,
            watchdog_s=settings.step_limit_s,
            kv_orders=bool(settings.kvstore),
        )
        try:
            kit.allocate(core, max_context)
        except UNFIT as error:
            raise SettingError(f"engine {settings.engine}: {error}") from None
        _tell(settings, kit.geometry, pages)
        regions = open_host(settings.transport, settings.fabric_address)
        stack.callback(regions.close)
        ring = _create_ring(regions, settings, engine_id, kit.geometry, pages, max_context)
        stack.callback(ring.region.close)
        try:
            scheduler = kit.make_scheduler(ring, core, max_context)
        except (*UNFIT, ValueError) as error:
            raise SettingError(f"engine {settings.engine}: {error}") from error
        stack.callback(scheduler.close)
        name = _region_name(engine_id, settings)
        pool = _kv_pages(settings, kit, regions, name, stack) if settings.kvstore else None
        closing = stack.pop_all()
        return Served(kit.geometry, pages, max_context, ring, scheduler, pool, name, regions, closing)


def _kv_pages(
    settings: BackendSettings, kit: EngineKit, regions: RegionHost, name: str, stack: contextlib.ExitStack
) -> Pages:
    if settings.kv_copies == "engine":
        return kit.kv_pages()
    try:
        pages = LoopbackPages(kit.kv_pages(), regions, name)
    except (OSError, FabricError) as error:
        raise SettingError(f"kv-copies: {error}") from None
    stack.callback(pages.close)
    return pages


def context_of(settings: BackendSettings, geometry: ModelGeometry) -> int:
    """Most tokens of one request, as the model and the settings have it."""
    if settings.max_context > geometry.max_context:
        raise SettingError(f"max-context: {settings.max_context} is more than the model's {geometry.max_context}")
    return settings.max_context or geometry.max_context


def _pages(settings: BackendSettings, kit: EngineKit) -> int:
    if settings.kv_pages:
        return settings.kv_pages
    of_longest = -(-context_of(settings, kit.geometry) // PAGE_TOKENS)
    try:
        return kit.default_pages(of_longest * settings.batch)
    except EngineError as error:
        raise SettingError(f"kv-pages: {error}") from None


def _tell(settings: BackendSettings, geometry: ModelGeometry, pages: int) -> None:
    page_bytes = (settings.kv_layers_resident or geometry.layers) * geometry.layer_bytes
    log.info(
        "KV memory",
        extra={
            "pages": pages,
            "tokens": pages * PAGE_TOKENS,
            "page_bytes": page_bytes,
            "total_mib": round(pages * page_bytes / 2**20, 1),
        },
    )


def _create_ring(
    regions: RegionHost,
    settings: BackendSettings,
    engine_id: str,
    geometry: ModelGeometry,
    pages: int,
    max_context: int,
) -> RingOwner:
    """A new ring in a region of its own, whose stale predecessor is removed."""
    shape = RingGeometry(settings.slots, settings.prompt_words, settings.token_words)
    try:
        region = regions.create(f"ring.{_region_name(engine_id, settings)}", shape.size_bytes, Rights.ALL)
    except RegionInUse as error:
        raise SettingError(f"engine-id: {engine_id!r} is taken: {error}") from None
    except OSError as error:
        room = f"{shape.size_bytes} bytes of shared memory in {paths.shm_dir()} (HOSTLESS_SHM)"
        raise SettingError(f"slots, prompt-words, token-words: no {room}: {error.strerror}") from None
    return RingOwner(
        region,
        shape,
        epoch=time.time_ns(),
        max_context=max_context,
        vocab_size=geometry.vocab,
        page_count=pages,
    )


def _region_name(engine_id: str, settings: BackendSettings) -> str:
    """Unique on this machine, as ids are in a mesh, and a mesh is known by its scheduler; as a file's name can be."""
    name = f"{engine_id}-{settings.scheduler}"
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)
