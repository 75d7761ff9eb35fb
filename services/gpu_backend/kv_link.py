"""The engine's tie to the KV store and to its peers: the agent that moves blocks, and its clients."""

from collections.abc import Sequence
from dataclasses import dataclass

from hostless.v1 import scheduler_pb2 as pb
from services.common.keys import MARK_BYTES
from services.global_scheduler.client import SchedulerClient
from services.gpu_backend.kv_agent import KvAgent
from services.gpu_backend.reports import StoreTraffic
from services.kvstore.client import StoreClient

HAND_OVER_POLL_S = 0.01
"""Between two looks for orders of an engine that prefills for others: the order to hand over comes out of the blue, and
a client waits for its second token."""

NEWS = 8192
"""Of blocks that came to be held, or are not any more, in one report; the rest is told by the next ones."""


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

    def traffic(self, anew: bool) -> StoreTraffic:
        """`anew`: what is held is told to somebody who knows nothing yet."""
        counters = self.agent.counters
        added, removed = (_marks(keys) for keys in self.agent.held.news(anew, NEWS))
        return StoreTraffic(
            self.agent.read_queue_tokens, counters.blocks_stored, counters.blocks_dropped, added, removed
        )


def _marks(keys: Sequence[bytes]) -> bytes:
    return b"".join(key[:MARK_BYTES] for key in keys)
