"""The gRPC shell: messages in, Reader and Writer, messages out."""

import asyncio
import time
from typing import Any

import grpc
import numpy as np

from hostless.v1 import kvstore_pb2 as pb
from hostless.v1 import kvstore_pb2_grpc
from services.common.keys import KEY_BYTES
from services.kvstore.block import Block, Stored
from services.kvstore.disk import Disk
from services.kvstore.keeping import Kept
from services.kvstore.leases import Leases
from services.kvstore.reading import Found, Reader, Slice, TooManyLeases
from services.kvstore.writing import Writer

NAME = "hostless.v1.KvStore"

MOST_LISTED = 4096
MOST_VERIFIED_BYTES = 256 << 20
"""Of one call of Verify, or one block."""
DRAIN_LOOK_S = 0.02

Context = grpc.aio.ServicerContext[Any, Any]


class StoreService(kvstore_pb2_grpc.KvStoreServicer):  # type: ignore[misc]
    def __init__(self, engine: str, disk: Disk, leases: Leases, kept: Kept, reader: Reader, writer: Writer) -> None:
        self._engine, self._disk, self._leases, self._kept = engine, disk, leases, kept
        self._reader, self._writer = reader, writer
        self._verifying = False
        self.lane_port = 0
        """Where the lane is served, which `answer` answers."""

    def register(self, server: grpc.aio.Server) -> None:
        kvstore_pb2_grpc.add_KvStoreServicer_to_server(self, server)

    async def Lookup(self, request: pb.LookupRequest, context: Context) -> pb.LookupReply:
        await _check_keys(request.keys, context)
        try:
            found = await self._reader.lookup(request.keys, request.ttl_ms / 1000)
        except TooManyLeases as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return self._reply(found, self.lane_port)

    def answer(self, request: bytes) -> bytes:
        """A lookup on the lane. What a call would abort for is refused in the reply."""
        asked = pb.LookupRequest.FromString(request)
        try:
            found = self._reader.look(asked.keys, asked.ttl_ms / 1000)
        except (TooManyLeases, ValueError) as error:
            return bytes(pb.LookupReply(refusal=str(error)).SerializeToString())
        self._reader.count(asked.keys, found.hit)
        return bytes(self._reply(found).SerializeToString())

    def _reply(self, found: Found, lane_port: int = 0) -> pb.LookupReply:
        return pb.LookupReply(
            hit=found.hit,
            lease_id=found.lease_id,
            ttl_ms=int(found.ttl_s * 1000),
            read_queue_tokens=self._reader.queue_tokens,
            lane_port=lane_port,
        )

    async def Read(self, request: pb.ReadRequest, context: Context) -> pb.ReadReply:
        part = Slice(request.offset, request.stride, request.slice_offset, request.slice_bytes)
        blocks, reason = await self._reader.read(
            request.lease_id, request.first, request.count, request.block_bytes, request.target, part
        )
        return pb.ReadReply(blocks=blocks, reason=reason)

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseReply:
        self._reader.release(request.lease_id)
        return pb.ReleaseReply()

    async def Begin(self, request: pb.BeginRequest, context: Context) -> pb.BeginReply:
        places = self._writer.begin([_block(head) for head in request.blocks])
        tickets = [pb.Ticket(ticket_id=p.ticket_id, offset=p.offset, reason=p.reason) for p in places]
        return pb.BeginReply(tickets=tickets, region=self._writer.descriptor)

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitReply:
        reasons = await self._writer.commit([(block.ticket_id, block.crc32c) for block in request.blocks])
        return pb.CommitReply(stored=[not reason for reason in reasons], reasons=reasons)

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortReply:
        self._writer.abort(request.ticket_ids)
        return pb.AbortReply()

    async def Stats(self, request: pb.StatsRequest, context: Context) -> pb.StatsReply:
        return self.stats()

    async def Drain(self, request: pb.StoreDrainRequest, context: Context) -> pb.StoreDrainReply:
        self.drain(not request.resume)
        give_up = time.monotonic() + request.timeout_ms / 1000
        while not request.resume and (self._leases or len(self._writer.tickets)) and time.monotonic() < give_up:
            await asyncio.sleep(DRAIN_LOOK_S)
            self.free_abandoned()
        return pb.StoreDrainReply(leases=len(self._leases), tickets=len(self._writer.tickets))

    async def Keep(self, request: pb.KeepRequest, context: Context) -> pb.KeepReply:
        await _check_keys(request.keys, context)
        change = self._kept.let_go if request.let_go else self._kept.keep
        return pb.KeepReply(blocks=change(request.keys))

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListReply:
        limit = min(request.limit or MOST_LISTED, MOST_LISTED)
        after, blocks = self._disk.index.page(request.cursor, limit)
        listed = [
            pb.StoredBlock(key=key, parent=parent, position=position, bytes=length, pins=pins, root=root)
            for key, parent, position, length, pins, root in blocks
        ]
        return pb.ListReply(blocks=listed, next=after)

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyReply:
        if self._verifying:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "another verification is under way")
        self._verifying = True
        try:
            return await self._verify(request)
        finally:
            self._verifying = False

    async def _verify(self, request: pb.VerifyRequest) -> pb.VerifyReply:
        after, page = self._disk.index.page(request.cursor, 1)
        blocks: list[Stored] = [Stored(*entry[:4]) for entry in page]
        size = sum(block.length for block in blocks)
        while after and len(blocks) < (request.limit or MOST_LISTED) and size < MOST_VERIFIED_BYTES:
            after, page = self._disk.index.page(after, 1)
            blocks += [Stored(*entry[:4]) for entry in page]
            size += sum(entry[3] for entry in page)
        broken = await self._reader.verify(blocks)
        return pb.VerifyReply(checked=len(blocks), bytes=size, broken=[block.key for block in broken], next=after)

    async def Collect(self, request: pb.CollectRequest, context: Context) -> pb.CollectReply:
        index = self._disk.index
        self._leases.expire(time.monotonic())
        blocks = await self._disk.free(request.free_bytes - (index.capacity - index.used))
        return pb.CollectReply(blocks=blocks, free_bytes=index.capacity - index.used)

    def stats(self) -> pb.StatsReply:
        counters, index = self._disk.counters, self._disk.index
        return pb.StatsReply(
            blocks=len(index),
            bytes=index.stored,
            capacity_bytes=index.capacity,
            lookups=counters.lookups,
            keys_asked=counters.keys_asked,
            keys_hit=counters.keys_hit,
            blocks_read=counters.blocks_read,
            bytes_read=counters.bytes_read,
            blocks_written=counters.blocks_written,
            bytes_written=counters.bytes_written,
            blocks_evicted=counters.blocks_evicted,
            blocks_corrupt=counters.blocks_corrupt,
            blocks_adopted=counters.blocks_adopted,
            leases=len(self._leases),
            tickets=len(self._writer.tickets),
            read_queue_tokens=self._reader.queue_tokens,
            index_bytes=index.memory + self._disk.engine.index_bytes,
            kept_blocks=len(self._kept),
            roots=index.roots,
            engine=self._engine,
            draining=self._reader.draining,
        )

    def drain(self, draining: bool = True) -> None:
        """Gives no more leases and places; or does so again."""
        self._reader.draining = self._writer.draining = draining

    def free_abandoned(self) -> None:
        """What leases and tickets hold whose time is over."""
        now = time.monotonic()
        self._leases.expire(now)
        self._writer.expire(now)

    async def tidy(self, every_s: float = 1.0) -> None:
        """Frees what was abandoned, and keeps room free. Runs for ever."""
        while True:
            await asyncio.sleep(every_s)
            self.free_abandoned()
            await self._disk.relieve()

    async def sweep(self, every_s: float = 1.0) -> None:
        """Lets go of the memory of readers that went away. Runs for ever."""
        while True:
            await asyncio.sleep(every_s)
            await self._reader.sweep()


async def _check_keys(keys: bytes, context: Context) -> None:
    if len(keys) % KEY_BYTES:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"keys: {len(keys)} bytes are no multiple of {KEY_BYTES}")


def _block(head: pb.BlockHead) -> Block:
    return Block(head.key, head.parent, head.position, head.bytes, np.array(head.tokens, "<u4").tobytes())
