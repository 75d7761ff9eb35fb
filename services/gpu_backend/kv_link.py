"""The engine's tie to the KV store and to its peers: the agent that moves blocks, and its clients."""

from dataclasses import dataclass

from services.global_scheduler.client import SchedulerClient
from services.gpu_backend.kv_agent import KvAgent
from services.gpu_backend.reports import StoreTraffic
from services.kvstore.client import StoreClient


@dataclass(frozen=True, slots=True)
class KvLink:
    agent: KvAgent
    client: StoreClient
    scheduler: SchedulerClient | None = None  # tells a prefill engine where decode engines are

    async def close(self) -> None:
        await self.client.close()
        if self.scheduler is not None:
            await self.scheduler.close()

    def traffic(self) -> StoreTraffic:
        counters = self.agent.counters
        return StoreTraffic(self.agent.read_queue_tokens, counters.blocks_stored, counters.blocks_dropped)
