"""The engine's tie to the KV store: the agent that moves blocks, and its client."""

from dataclasses import dataclass

from services.gpu_backend.kv_agent import KvAgent
from services.gpu_backend.reports import StoreTraffic
from services.kvstore.client import StoreClient


@dataclass(frozen=True, slots=True)
class KvLink:
    agent: KvAgent
    client: StoreClient

    def traffic(self) -> StoreTraffic:
        counters = self.agent.counters
        return StoreTraffic(self.agent.read_queue_tokens, counters.blocks_stored, counters.blocks_dropped)
