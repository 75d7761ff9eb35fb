"""The engine's tie to the KV store and to its peers: the agent that moves blocks, and its clients."""

from dataclasses import dataclass

from hostless.v1 import scheduler_pb2 as pb
from services.global_scheduler.client import SchedulerClient
from services.gpu_backend.kv_agent import KvAgent
from services.gpu_backend.reports import StoreTraffic
from services.kvstore.client import StoreClient

HAND_OVER_POLL_S = 0.01
"""Between two looks for orders of an engine that prefills for others: the order to hand over comes out of the blue, and
a client waits for its second token."""


@dataclass(frozen=True, slots=True)
class KvLink:
    agent: KvAgent
    client: StoreClient
    scheduler: SchedulerClient  # tells where decode engines are

    async def close(self) -> None:
        await self.client.close()
        await self.scheduler.close()

    def take_role(self, role: pb.Role) -> None:
        """Of the engine, from now on."""
        self.agent.hurry(HAND_OVER_POLL_S if role == pb.ROLE_PREFILL else None)

    def traffic(self) -> StoreTraffic:
        counters = self.agent.counters
        return StoreTraffic(self.agent.read_queue_tokens, counters.blocks_stored, counters.blocks_dropped)
