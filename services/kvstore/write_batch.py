"""A writer's hold on the places that `Begin` gave it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from crc32c import crc32c

from hostless.v1 import kvstore_pb2 as pb
from services.fabric.errors import FabricError
from services.fabric.operations import Bytes, TrafficClass
from services.fabric.remote_region import RemoteRegion
from services.kvstore.block import Block


class StoreUnavailable(Exception):
    """The store is away, hangs, or has no room for the call. To a reader that is a miss, to a writer a drop."""


class WriteBatch:
    """Blocks that were begun. Fill each that has a place, then commit once."""

    def __init__(
        self,
        blocks: Sequence[Block],
        tickets: Sequence[pb.Ticket],
        region: RemoteRegion,
        commit: Callable[[pb.CommitRequest, float], Awaitable[pb.CommitReply]],
    ) -> None:
        self.blocks = blocks
        self._tickets = tickets
        self._region = region
        self._commit = commit
        self._filled: dict[int, int] = {}  # block's place in the batch: crc32c of its bytes
        self._settled = False

    def reason(self, at: int) -> str:
        """Why block `at` needs no bytes ("exists", "writing") or can't have any; empty if it has a place."""
        return "" if self._tickets[at].ticket_id else self._tickets[at].reason or "refused"

    def fill(self, at: int, data: Bytes) -> None:
        """Writes the bytes of block `at`, which must have a place. Raises StoreUnavailable."""
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # numpy's arrays are buffers
        if self.reason(at) or len(view) != self.blocks[at].length:
            raise ValueError(f"block {at} has no place, or not {len(view)} bytes")
        try:
            self._region.write(self._tickets[at].offset, view, TrafficClass.KV)
        except FabricError as error:
            raise StoreUnavailable(str(error)) from error
        self._filled[at] = crc32c(view)

    async def put(self, at: int, data: Bytes) -> None:
        """As fill; off the event loop where a network is between."""
        if self._region.mapped() is None:
            await asyncio.to_thread(self.fill, at, data)
        else:
            self.fill(at, data)

    async def commit(self, timeout_s: float = 30.0) -> list[str]:
        """One word a block of the batch: empty if it is now durable, else why not. Raises StoreUnavailable."""
        reasons = [self.reason(at) or "not filled" for at in range(len(self.blocks))]
        if self._filled:
            commits = [
                pb.CommitBlock(ticket_id=self._tickets[at].ticket_id, crc32c=crc) for at, crc in self._filled.items()
            ]
            reply = await self._commit(pb.CommitRequest(blocks=commits), timeout_s)
            for at, reason in zip(self._filled, reply.reasons, strict=True):
                reasons[at] = reason
        self._settled = True
        return reasons

    def open_tickets(self) -> list[int]:
        """Places to give back, once the batch is left."""
        taken = self._filled if self._settled else {}
        return [ticket.ticket_id for at, ticket in enumerate(self._tickets) if ticket.ticket_id and at not in taken]
