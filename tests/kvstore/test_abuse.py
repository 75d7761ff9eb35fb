"""What peers may do wrong, on purpose or by accident: it costs them an answer, and others nothing."""

import asyncio
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from hostless.v1 import kvstore_pb2 as pb
from hostless.v1 import kvstore_pb2_grpc
from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.region import MemoryRegion
from services.kvstore.block import BadBlock
from services.kvstore.client import StoreUnavailable
from services.kvstore.engines import Read, StorageEngine, Write
from services.kvstore.engines.files.engine import FileEngine
from services.kvstore.engines.local import LocalEngine
from tests.kvstore.blocks import keys
from tests.waiting import until

LENGTH = 20_000
U32, U64 = (1 << 32) - 1, (1 << 64) - 1


@pytest.fixture(params=[FileEngine, lambda folder: LocalEngine([folder])], ids=["files", "local"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> StorageEngine:
    made: StorageEngine = request.param(tmp_path / "engine")
    return made


NOWHERE = [
    {"transport": "shm", "address": "a\0b"},
    {"transport": "shm", "address": "/dev/zero"},
    {"transport": "shm", "address": "x" * 5000},
    {"transport": "shm", "address": "/proc/self/mem"},
    {"transport": "tcp", "address": "nonsense"},
    {"transport": "tcp", "address": "127.0.0.1:1"},
    {},
]
READS: list[dict[str, Any]] = [
    {"first": U32, "count": U32},
    {"first": 7, "count": 0},
    {"offset": U64},
    {"stride": U64, "count": 2},
    {"slice_offset": U64, "slice_bytes": U64},
    {"slice_offset": U64},
    {"slice_offset": 5},
    {"slice_offset": LENGTH},
    {"slice_bytes": U64},
    {"block_bytes": 0},
    {"stride": 1, "count": 2},
    {"stride": 99, "slice_bytes": 100, "count": 2},
    *({"target": RegionDescriptor(**nowhere)} for nowhere in NOWHERE),
]


async def test_no_read_that_cannot_be_costs_a_block(start: Any, tools: Any, region: Any, engine: StorageEngine) -> None:
    blocks = tools.chain(6)
    async with start(engine) as store:
        await tools.put(store.client, blocks)
        stub = kvstore_pb2_grpc.KvStoreStub(store.client._calls.channel)
        hit = await store.client.lookup(keys(blocks), 30)
        right = {"lease_id": hit.lease_id, "count": 1, "block_bytes": LENGTH, "target": region.descriptor()}
        for changed in READS:
            reply = await stub.Read(pb.ReadRequest(**{**right, **changed}), timeout=20)
            assert reply.blocks == 0, changed
            assert reply.reason, changed
        for change in ({"length": U64}, {"length": 100}, {"rkey": 1}, {"generation": 1}):
            target = region.descriptor()
            target.MergeFrom(RegionDescriptor(**change))
            reply = await stub.Read(pb.ReadRequest(**{**right, "target": target}), timeout=20)
            assert (reply.blocks, bool(reply.reason)) == (0, True), change
        assert await tools.get(store.client, blocks, region) == 6
        assert (await store.client.stats()).blocks_corrupt == 0


async def test_other_calls_with_what_is_none(start: Any, tools: Any, engine: StorageEngine) -> None:
    blocks = tools.chain(3)
    good = {"key": blocks[0].key, "parent": blocks[0].parent, "bytes": LENGTH, "tokens": range(64)}
    async with start(engine) as store:
        await tools.put(store.client, blocks)
        stub = kvstore_pb2_grpc.KvStoreStub(store.client._calls.channel)
        for wrong in ({"key": b""}, {"parent": b"x"}, {"bytes": 0}, {"bytes": U32}, {"tokens": []}, {"position": U32}):
            reply = await stub.Begin(pb.BeginRequest(blocks=[pb.BlockHead(**{**good, **wrong})]), timeout=20)
            assert reply.tickets[0].ticket_id == 0
            assert reply.tickets[0].reason
        commits = [pb.CommitBlock(ticket_id=number, crc32c=U32) for number in (0, 1, U64, U64)]
        assert not any((await stub.Commit(pb.CommitRequest(blocks=commits), timeout=20)).stored)
        await stub.Abort(pb.AbortRequest(ticket_ids=[0, U64]), timeout=20)
        await stub.Release(pb.ReleaseRequest(lease_id=U64), timeout=20)
        assert (await stub.List(pb.ListRequest(cursor=U64, limit=U32), timeout=20)).next == 0
        assert (await stub.Verify(pb.VerifyRequest(cursor=U64, limit=U32), timeout=20)).checked == 0
        assert (await stub.Keep(pb.KeepRequest(keys=b"n" * 16, let_go=True), timeout=20)).blocks == 0
        for call, request in ((stub.Keep, pb.KeepRequest(keys=b"1")), (stub.Lookup, pb.LookupRequest(keys=b"1"))):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(request, timeout=20)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert (await store.client.lookup(keys(blocks))).hit == 3
        await stub.Collect(pb.CollectRequest(free_bytes=U64), timeout=20)
        assert (await store.client.lookup(keys(blocks))).hit == 0


async def test_a_reader_that_scribbles_does_not_cost_the_block(
    start: Any, tools: Any, region: MemoryRegion, engine: StorageEngine
) -> None:
    blocks = tools.chain(2)
    load = engine.load

    def scribbled(reads: Sequence[Read]) -> list[Exception | None]:
        """As if the reader wrote to its region before the bytes were verified; memory of the store's own is its own."""
        outcomes = load(reads)
        mine = [isinstance(read.into.obj, bytearray) for read in reads]
        return [outcome if own else BadBlock("checksum") for outcome, own in zip(outcomes, mine, strict=True)]

    async with start(engine) as store:
        await tools.put(store.client, blocks)
        engine.load = scribbled  # type: ignore[method-assign]
        async with store.client.lease(keys(blocks), 30) as hit:
            got = await store.client.read(hit.lease_id, 0, 2, LENGTH, region.descriptor())
            assert got.blocks == 0
        engine.load = load  # type: ignore[method-assign]
        assert await tools.get(store.client, blocks, region) == 2
        assert (await store.client.stats()).blocks_corrupt == 0


async def test_an_owner_that_does_not_answer_holds_up_nobody_else(start: Any, tools: Any, region: MemoryRegion) -> None:
    blocks = tools.chain(2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = RegionDescriptor(
            transport="tcp", address=f"127.0.0.1:{silent.getsockname()[1]}", length=4096, rkey=1, generation=1
        )
        async with start() as store:
            await tools.put(store.client, blocks)
            async with store.client.lease(keys(blocks), 30) as hit:
                stuck = asyncio.create_task(store.client.read(hit.lease_id, 0, 1, LENGTH, target, timeout_s=30))
                await until(lambda: store.service._reader.queue_tokens)
                assert await tools.get(store.client, blocks, region) == 2
                await store.service._reader.sweep()
                assert not stuck.done()
                assert (await stuck).blocks == 0


async def test_blocks_are_removed_also_when_who_asked_for_it_went_away(
    start: Any, tools: Any, region: MemoryRegion, tmp_path: Path
) -> None:
    blocks, engine = tools.chain(8), FileEngine(tmp_path / "store")
    go, remove = threading.Event(), engine.remove

    def slow(gone: Sequence[bytes]) -> list[OSError | None]:
        assert go.wait(60)
        return remove(gone)

    engine.remove = slow  # type: ignore[method-assign]
    async with start(engine) as store:
        await tools.put(store.client, blocks)
        size = tools.size(blocks[0])
        room = (await store.client.stats()).capacity_bytes - 8 * size
        for more in (2, 4):  # the first is under way, the second waits for it
            asking = asyncio.create_task(store.client.collect(room + more * size))
            await until(lambda left=8 - more: len(store.service._disk.index) == left)  # type: ignore[misc]
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        writing = asyncio.create_task(tools.put(store.client, blocks[4:]))
        await until(lambda: store.service.stats().tickets == 4)
        go.set()
        assert await writing == [""] * 4, "not before their ends"
        assert len(list(engine._tree.files())) == 8
        assert await tools.get(store.client, blocks, region) == 8


async def test_a_lookup_may_find_what_is_being_written_to_a_shared_engine(
    start: Any, tools: Any, region: MemoryRegion, tmp_path: Path
) -> None:
    blocks, engine = tools.chain(3), FileEngine(tmp_path / "store", shared=True)
    put, written, go = engine.put, threading.Event(), threading.Event()

    def slow(writes: Sequence[Write]) -> list[Exception | None]:
        outcomes = put(writes)
        written.set()
        assert go.wait(60)
        return outcomes

    engine.put = slow  # type: ignore[method-assign]
    async with start(engine) as store:
        writing = asyncio.create_task(tools.put(store.client, blocks))
        await until(written.is_set)
        assert (await store.client.lookup(keys(blocks))).hit == 3
        go.set()
        assert await writing == [""] * 3
        assert await tools.get(store.client, blocks, region) == 3
        assert (await store.client.stats()).bytes == tools.size(*blocks)


async def test_what_is_kept_anew_after_a_loss_is_kept(start: Any, tools: Any, tmp_path: Path) -> None:
    blocks = tools.chain(1)
    async with start() as store:
        await tools.put(store.client, blocks)
        assert await store.client.keep(keys(blocks)) == 1
        (path,) = (tmp_path / "store" / "blocks").glob("?/*")
        path.write_bytes(path.read_bytes()[:-1])
        assert [key async for reply in store.client.verify() for key in reply.broken] == keys(blocks)
        assert await store.client.keep(keys(blocks)) == 0
        assert await tools.put(store.client, blocks) == [""]
        assert await store.client.keep(keys(blocks)) == 1
        await store.client.collect(1 << 40)
        assert (await store.client.lookup(keys(blocks))).hit == 1


async def test_one_verification_at_a_time(start: Any, tools: Any, tmp_path: Path) -> None:
    blocks, engine = tools.chain(2), FileEngine(tmp_path / "store")
    load, reached, go = engine.load, threading.Event(), threading.Event()

    def slow(reads: Sequence[Read]) -> list[Exception | None]:
        reached.set()
        assert go.wait(60)
        return load(reads)

    async def verified(client: Any) -> int:
        return sum([reply.checked async for reply in client.verify()])

    engine.load = slow  # type: ignore[method-assign]
    async with start(engine) as store:
        await tools.put(store.client, blocks)
        first = asyncio.create_task(verified(store.client))
        await until(reached.is_set)
        with pytest.raises(StoreUnavailable, match="another verification"):
            await verified(store.client)
        go.set()
        assert await first == 2
        assert await verified(store.client) == 2
