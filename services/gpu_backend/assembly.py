"""Puts a prepared engine into the mesh: its description, its KV agent, its backend."""

from hostless.v1 import scheduler_pb2 as pb
from services.gpu_backend.backend import Backend
from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.kv_agent import AgentSettings, KvAgent, RingPrompts
from services.gpu_backend.kv_link import KvLink
from services.gpu_backend.serving import Served
from services.gpu_backend.settings import BackendSettings
from services.kvstore.client import StoreClient


def assemble(settings: BackendSettings, served: Served, port: int) -> Backend:
    """A backend, not yet started, for the service that listens on `port`. It owns `served`."""
    kv_link = None
    if served.kv_pages is not None:
        client = StoreClient(settings.kvstore)
        orders, prompts = served.scheduler.orders, RingPrompts(served.ring)
        agent = KvAgent(orders, prompts, served.kv_pages, client, AgentSettings(), served.region_name, served.regions)
        kv_link = KvLink(agent, client)
    info = pb.EngineInfo(
        engine_id=settings.name(port),
        address=settings.advertised(port),
        role=pb.ROLE_UNIFIED,
        model=settings.model,
        epoch=served.ring.epoch,
        page_tokens=PAGE_TOKENS,
        page_count=served.pages,
        max_context=served.max_context,
        vocab_size=served.geometry.vocab,
        kv_layout=served.geometry.kv_layout,
        model_path=str(settings.model_folder),
    )
    return Backend(settings, info, served, kv_link)
