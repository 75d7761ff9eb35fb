"""What the loader, storer, receiver and sender of one agent share."""

from dataclasses import dataclass

from services.fabric.hosting import RegionHost
from services.gpu_backend.kv_agent.counters import AgentCounters
from services.gpu_backend.kv_agent.health import StoreHealth
from services.gpu_backend.kv_agent.held import HeldBlocks
from services.gpu_backend.kv_agent.orders import Orders
from services.gpu_backend.kv_agent.pages import Pages
from services.gpu_backend.kv_agent.settings import AgentSettings
from services.kvstore.client import StoreClient


@dataclass(frozen=True, slots=True)
class Shared:
    """name: of the engine, for registered memory that `regions` makes. layers: of the model."""

    orders: Orders
    kv_pages: Pages
    client: StoreClient
    health: StoreHealth
    counters: AgentCounters
    settings: AgentSettings
    name: str
    regions: RegionHost
    layers: int
    held: HeldBlocks
