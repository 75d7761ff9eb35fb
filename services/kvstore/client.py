"""Client of the KV store: look chains up, read blocks into one's own memory, write blocks into the store's."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hostless.v1 import kvstore_pb2 as pb
from hostless.v1.fabric_pb2 import RegionDescriptor
from services.common.lane.shortcut import Shortcut
from services.fabric.errors import FabricError
from services.fabric.remote_region import RemoteRegion
from services.fabric.transports import open_region
from services.kvstore.block import Block
from services.kvstore.calls import FREE_S, Calls
from services.kvstore.write_batch import StoreUnavailable, WriteBatch

StoredBlock = pb.StoredBlock
StoreStats = pb.StatsReply

__all__ = ["Block", "Hit", "Readout", "StoreClient", "StoreStats", "StoreUnavailable", "StoredBlock", "WriteBatch"]


@dataclass(frozen=True, slots=True)
class Hit:
    """`hit` keys from the first are stored. lease_id 0: nothing hit, or no lease asked for.

    `read_queue_tokens` are those that the store is reading, or has still to read (D9).
    """

    hit: int
    lease_id: int = 0
    ttl_s: float = 0.0
    read_queue_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Readout:
    """`blocks` from the first asked lie whole and verified in the target; `reason` says why not all."""

    blocks: int
    reason: str = ""


class StoreClient:
    """One channel to one store, which reconnects by itself. Close it, or use it as an async context.

    Every call raises StoreUnavailable rather than wait longer than its timeout.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._calls = Calls(address)
        self._stub = self._calls.stub
        self._write_region: RemoteRegion | None = None
        self._opening = asyncio.Lock()
        self._lane = Shortcut(address, "hostless.v1.KvStore/Lookups", self._unwanted)

    async def lookup(self, keys: Sequence[bytes], ttl_s: float = 0.0, timeout_s: float = 1.0) -> Hit:
        """Longest stored run from the first key. With ttl_s, leased so long at most; the caller releases it."""
        request = pb.LookupRequest(keys=b"".join(keys), ttl_ms=int(ttl_s * 1000))
        reply = await self._look_up(request, timeout_s)
        return Hit(reply.hit, reply.lease_id, reply.ttl_ms / 1000, reply.read_queue_tokens)

    @asynccontextmanager
    async def lease(self, keys: Sequence[bytes], ttl_s: float, timeout_s: float = 1.0) -> AsyncIterator[Hit]:
        """`lookup` whose lease ends with the block, however it is left."""
        hit = await self.lookup(keys, ttl_s, timeout_s)
        try:
            yield hit
        finally:
            if hit.lease_id:
                self.release_later(hit.lease_id)

    async def read(
        self,
        lease_id: int,
        first: int,
        count: int,
        block_bytes: int,
        target: RegionDescriptor,
        offset: int = 0,
        timeout_s: float = 5.0,
        part: tuple[int, int] = (0, 0),
        stride: int = 0,
    ) -> Readout:
        """Has blocks [first, first + count) of the lease written to the target, the first at `offset`, the others
        without gaps, or each `stride` bytes after the one before.

        `part` is (begin, bytes) of each block to read, one Layer Block say (D5); (0, 0): whole blocks.

        After StoreUnavailable or a cancellation the store may still be writing for a while: close the
        target region, or leave that part of it alone until the lease has ended.
        """
        request = pb.ReadRequest(
            lease_id=lease_id,
            first=first,
            count=count,
            block_bytes=block_bytes,
            target=target,
            offset=offset,
            slice_offset=part[0],
            slice_bytes=part[1],
            stride=stride,
        )
        reply = await self._calls.call(self._stub.Read, request, timeout_s)
        return Readout(reply.blocks, reply.reason)

    async def release(self, lease_id: int, timeout_s: float = FREE_S) -> None:
        """Idempotent."""
        await self._calls.call(self._stub.Release, pb.ReleaseRequest(lease_id=lease_id), timeout_s)

    def release_later(self, lease_id: int) -> None:
        """Releases in the background, so that a cancelled or late caller does not wait for it."""
        self._calls.free(self.release(lease_id))

    @asynccontextmanager
    async def write(self, blocks: Sequence[Block], timeout_s: float = 1.0) -> AsyncIterator[WriteBatch]:
        """Begins blocks, parents before children. Places that were not committed by the end are given back."""
        heads = [
            pb.BlockHead(
                key=block.key,
                parent=block.parent,
                position=block.position,
                bytes=block.length,
                tokens=memoryview(block.tokens).cast("I").tolist(),
            )
            for block in blocks
        ]
        begin = self._calls.call(self._stub.Begin, pb.BeginRequest(blocks=heads), timeout_s + FREE_S)
        reply = await self._calls.in_time(begin, timeout_s, self._abort)
        try:
            region = await self._region(reply.region)
        except BaseException as error:
            self._calls.free(self._abort(reply))
            if isinstance(error, FabricError):
                raise StoreUnavailable(f"the store's write buffer: {error}") from error
            raise

        async def commit(request: pb.CommitRequest, timeout_s: float) -> pb.CommitReply:
            return await self._calls.call(self._stub.Commit, request, timeout_s)

        batch = WriteBatch(blocks, reply.tickets, region, commit)
        try:
            yield batch
        finally:
            if left := batch.open_tickets():
                self._calls.free(self._abort_tickets(left))

    async def stats(self, timeout_s: float = 5.0) -> pb.StatsReply:
        return await self._calls.call(self._stub.Stats, pb.StatsRequest(), timeout_s)

    async def drain(self, timeout_s: float, resume: bool = False) -> tuple[int, int]:
        """No new leases and blocks from now on; or, to `resume`, again. Returns the leases and the writers' places that
        have not ended within the time."""
        request = pb.StoreDrainRequest(timeout_ms=int(timeout_s * 1000), resume=resume)
        reply = await self._calls.call(self._stub.Drain, request, timeout_s + 5.0)
        return reply.leases, reply.tickets

    async def keep(self, keys: Sequence[bytes], let_go: bool = False, timeout_s: float = 5.0) -> int:
        """Keeps the stored run of `keys` from eviction, as far as the store allows; or lets it go. Returns how many."""
        reply = await self._calls.call(self._stub.Keep, pb.KeepRequest(keys=b"".join(keys), let_go=let_go), timeout_s)
        return int(reply.blocks)

    async def blocks(self, timeout_s: float = 5.0) -> AsyncIterator[pb.StoredBlock]:
        """All that is stored, in no order; what comes and goes meanwhile may be missed."""
        request = pb.ListRequest()
        while True:
            reply = await self._calls.call(self._stub.List, request, timeout_s)
            for block in reply.blocks:
                yield block
            if not reply.next:
                return
            request.cursor = reply.next

    async def verify(self, timeout_s: float = 60.0) -> AsyncIterator[pb.VerifyReply]:
        """Has the store read all its blocks, and drop the broken ones. A reply a few hundred MB."""
        request = pb.VerifyRequest()
        while True:
            reply = await self._calls.call(self._stub.Verify, request, timeout_s)
            yield reply
            if not reply.next:
                return
            request.cursor = reply.next

    async def collect(self, free_bytes: int, timeout_s: float = 60.0) -> pb.CollectReply:
        """Evicts until so many bytes are free, or nothing more may go."""
        return await self._calls.call(self._stub.Collect, pb.CollectRequest(free_bytes=free_bytes), timeout_s)

    async def close(self) -> None:
        await self._lane.close()
        await self._calls.close()
        if self._write_region is not None:
            self._write_region.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _look_up(self, request: pb.LookupRequest, timeout_s: float) -> pb.LookupReply:
        """By the lane, once there is one; a call shows the way to it, and is what is left without."""
        try:
            answer = await self._lane.ask(request.SerializeToString(), timeout_s)
        except TimeoutError:
            raise self._calls.unavailable("DEADLINE_EXCEEDED on the lane") from None
        if answer is None:
            lookup = self._calls.call(self._stub.Lookup, request, timeout_s + FREE_S)
            reply = await self._calls.in_time(lookup, timeout_s, self._let_go)
            self._lane.offer(reply.lane_port)
            return reply
        reply = pb.LookupReply.FromString(answer)
        if reply.refusal:
            raise self._calls.unavailable(reply.refusal)
        return reply

    def _unwanted(self, answer: bytes) -> None:
        self._calls.free(self._let_go(pb.LookupReply.FromString(answer)))

    async def _let_go(self, reply: pb.LookupReply) -> None:
        if reply.lease_id:
            await self.release(reply.lease_id)

    async def _abort(self, reply: pb.BeginReply) -> None:
        await self._abort_tickets([ticket.ticket_id for ticket in reply.tickets if ticket.ticket_id])

    async def _abort_tickets(self, ticket_ids: list[int]) -> None:
        if ticket_ids:
            await self._calls.call(self._stub.Abort, pb.AbortRequest(ticket_ids=ticket_ids), FREE_S)

    async def _region(self, descriptor: RegionDescriptor) -> RemoteRegion:
        async with self._opening:
            if self._write_region is None or self._write_region.descriptor != descriptor:
                if self._write_region is not None:
                    self._write_region.close()
                self._write_region = None
                self._write_region = await asyncio.to_thread(open_region, descriptor)
            return self._write_region
