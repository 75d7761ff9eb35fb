"""Puts a prepared engine into the mesh: its description, its KV agent, its backend."""

import logging

from hostless.v1 import scheduler_pb2 as pb
from services.common.settings import SettingError
from services.global_scheduler.client import SchedulerClient
from services.gpu_backend.backend import Backend
from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.engines.host_memory import available_bytes
from services.gpu_backend.kv_agent import AgentSettings, KvAgent, Pages, Peers, RingPrompts
from services.gpu_backend.kv_agent.held import MOST_BLOCKS
from services.gpu_backend.kv_link import KvLink
from services.gpu_backend.serving import Served
from services.gpu_backend.settings import BackendSettings
from services.kvstore.client import StoreClient

log = logging.getLogger(__name__)

ROLES = {"unified": pb.ROLE_UNIFIED, "prefill": pb.ROLE_PREFILL, "decode": pb.ROLE_DECODE}


def assemble(settings: BackendSettings, served: Served, port: int) -> Backend:
    """A backend, not yet started, for the service that listens on `port`. It owns `served`. Raises SettingError."""
    kv_link, receive_tokens = None, 0
    if served.kv_pages is not None:
        receive_tokens = _receive_tokens(settings.receive_buffer_bytes, served.kv_pages.block_bytes)
        try:
            kv_link = _join_store(settings, served, served.kv_pages)
        except OSError as error:
            raise SettingError(f"receive-buffer-bytes: {error}") from None
    info = pb.EngineInfo(
        engine_id=settings.name(port),
        address=settings.advertised(port),
        role=ROLES[settings.role],
        model=settings.model,
        epoch=served.ring.epoch,
        page_tokens=PAGE_TOKENS,
        page_count=served.pages,
        max_context=served.max_context,
        vocab_size=served.geometry.vocab,
        kv_layout=served.geometry.kv_layout,
        model_path=str(settings.model_folder),
        node_id=settings.node,
        receive_tokens=receive_tokens,
    )
    return Backend(settings, info, served, kv_link)


def _join_store(settings: BackendSettings, served: Served, pages: Pages) -> KvLink:
    held, room = min(settings.held_bytes, MOST_BLOCKS * pages.block_bytes), available_bytes()
    if held > room:
        raise SettingError(f"held-bytes: blocks of {held} bytes, but {room} are available")
    if settings.role == "decode":
        _warn_of_longer_prompts(settings.receive_buffer_bytes, pages.block_bytes, served.max_context)
    client = StoreClient(settings.kvstore)
    limits = AgentSettings(
        receive_buffer_bytes=settings.receive_buffer_bytes,
        receive_on_device=settings.receives_on_device,
        fill_bytes_s=settings.fill_bytes_s,
        load_buffer_bytes=settings.load_buffer_bytes,
        held_bytes=settings.held_bytes,
        load_deadline_s=settings.load_deadline_s,
        layers_s=min(settings.load_deadline_s, settings.step_limit_s / 2 or settings.load_deadline_s),
        read_timeout_s=settings.load_deadline_s / 2,
    )
    scheduler = SchedulerClient(settings.scheduler)
    agent = KvAgent(
        served.scheduler.orders,
        RingPrompts(served.ring),
        pages,
        client,
        limits,
        served.region_name,
        served.regions,
        layers=served.geometry.layers,
        peers=Peers(scheduler.watch, limits.peer_wait_s, limits.transfer_s),
        layer_counters=served.scheduler.layers if settings.layerwise else None,
    )
    link = KvLink(agent, client, scheduler)
    link.take_role(ROLES[settings.role])
    return link


def _receive_tokens(size: int, block_bytes: int) -> int:
    """Of the longest prompt that the receive buffer holds: the mesh sends none that is longer."""
    if size < block_bytes:
        raise SettingError(f"receive-buffer-bytes: {size} hold no block of {PAGE_TOKENS} tokens, {block_bytes} bytes")
    return size // block_bytes * PAGE_TOKENS


def _warn_of_longer_prompts(size: int, block_bytes: int, max_context: int) -> None:
    longest = -(-max_context // PAGE_TOKENS) * block_bytes
    if size < longest:
        log.warning(
            "a prompt that is longer than the receive buffer holds is refused",
            extra={"receive_buffer_bytes": size, "holds_tokens": size // block_bytes * PAGE_TOKENS,
                   "max_context": max_context, "would_hold_it": longest},
        )  # fmt: skip
