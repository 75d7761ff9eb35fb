"""The gRPC shell: messages in, Reader and Writer, messages out."""

import asyncio
import time
from typing import Any

import grpc
import numpy as np

from hostless.v1 import kvstore_pb2 as pb
from hostless.v1 import kvstore_pb2_grpc
from services.common.keys import KEY_BYTES
from services.kvstore.block import Block
from services.kvstore.disk import Disk
from services.kvstore.leases import Leases
from services.kvstore.reading import Reader, TooManyLeases
from services.kvstore.writing import Writer

NAME = "hostless.v1.KvStore"

Context = grpc.aio.ServicerContext[Any, Any]


class StoreService(kvstore_pb2_grpc.KvStoreServicer):  # type: ignore[misc]
    def __init__(self, disk: Disk, leases: Leases, reader: Reader, writer: Writer) -> None:
        self._disk, self._leases, self._reader, self._writer = disk, leases, reader, writer

    def register(self, server: grpc.aio.Server) -> None:
        kvstore_pb2_grpc.add_KvStoreServicer_to_server(self, server)

    async def Lookup(self, request: pb.LookupRequest, context: Context) -> pb.LookupReply:
        if len(request.keys) % KEY_BYTES:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"keys: {len(request.keys)} bytes are no multiple of {KEY_BYTES}"
            )
        keys = [request.keys[at : at + KEY_BYTES] for at in range(0, len(request.keys), KEY_BYTES)]
        try:
            hit, lease_id, ttl_s = self._reader.lookup(keys, request.ttl_ms / 1000)
        except TooManyLeases as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return pb.LookupReply(hit=hit, lease_id=lease_id, ttl_ms=int(ttl_s * 1000))

    async def Read(self, request: pb.ReadRequest, context: Context) -> pb.ReadReply:
        blocks, reason = await self._reader.read(
            request.lease_id, request.first, request.count, request.block_bytes, request.target, request.offset
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
            blocks_written=counters.blocks_written,
            blocks_evicted=counters.blocks_evicted,
            blocks_corrupt=counters.blocks_corrupt,
            leases=len(self._leases),
            tickets=len(self._writer.tickets),
        )

    async def expire(self, every_s: float = 1.0) -> None:
        """Frees what abandoned leases and tickets hold. Runs for ever."""
        while True:
            await asyncio.sleep(every_s)
            now = time.monotonic()
            self._leases.expire(now)
            self._writer.expire(now)


def _block(head: pb.BlockHead) -> Block:
    return Block(head.key, head.parent, head.position, head.bytes, np.array(head.tokens, "<u4").tobytes())
