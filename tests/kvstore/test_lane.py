"""The lane: any gRPC client on it, ours on it, and what is none of it."""

import asyncio
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostless.v1 import kvstore_pb2 as pb
from hostless.v1 import kvstore_pb2_grpc
from services.common.lane import frames
from services.common.lane.frames import Frame, Frames, Malformed, Messages
from services.kvstore.client import StoreUnavailable
from tests.kvstore.blocks import keys
from tests.waiting import until


@given(st.lists(st.binary(max_size=40_000), max_size=5), st.data())
def test_messages_come_out_however_the_bytes_are_cut(payloads: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(frames.message(7, payload) for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    reader, messages, found = Frames(), Messages(), []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        for frame in reader.take(whole[begin:end]):
            assert (frame.kind, frame.stream) == (frames.DATA, 7)
            found += messages.take(frame)
    assert found == payloads


def test_padding_is_no_data_and_must_fit() -> None:
    message = frames.message(1, b"hello")[9:]
    padded = Frame(frames.DATA, frames.PADDED, 1, b"\x03" + message + b"\0\0\0")
    assert list(Messages().take(padded)) == [b"hello"]
    with pytest.raises(Malformed):
        list(Messages().take(Frame(frames.DATA, frames.PADDED, 1, b"\x09\0")))


async def test_a_client_made_of_grpc_can_use_it(start: Any, tools: Any) -> None:
    blocks = tools.chain(5)
    async with start() as store:
        await tools.put(store.client, blocks[:3])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{store.service.lane_port}") as channel:
            for _ in range(2):
                call = kvstore_pb2_grpc.KvStoreStub(channel).Lookups()
                for count in (1, 5, 4096):
                    asked = (keys(blocks) * count)[:count]
                    await call.write(pb.LookupRequest(keys=b"".join(asked), ttl_ms=0))
                    assert (await call.read()).hit == min(count, 3)
                await call.write(pb.LookupRequest(keys=b"short"))
                assert "16" in (await call.read()).refusal
                await call.done_writing()
                assert await call.read() is grpc.aio.EOF
                assert await call.code() == grpc.StatusCode.OK


async def on_lane(client: Any) -> None:
    await client.lookup([])
    await until(lambda: client._lane.lane is not None)


async def test_the_client_changes_to_it_by_itself(start: Any, tools: Any, region: Any) -> None:
    blocks = tools.chain(6)
    async with start() as store:
        await tools.put(store.client, blocks)
        await on_lane(store.client)
        for _ in range(1200):  # more than the windows hold, both ways
            assert (await store.client.lookup(keys(blocks) + [b"n" * 16] * 594)).hit == 6
        outcomes = await asyncio.gather(*(store.client.lookup(keys(blocks[:n]), 10) for n in (3, 1, 6, 0)))
        assert [hit.hit for hit in outcomes] == [3, 1, 6, 0]
        assert len({hit.lease_id for hit in outcomes[:3]}) == 3
        assert (await store.client.lookup(keys(blocks) * 5000)).hit == 30_000, "many frames"
        assert not store.client._lane.lane.closed
        assert await tools.get(store.client, blocks, region) == 6
        assert (await store.client.stats()).lookups >= 1206


async def test_a_caller_that_went_away_leaves_no_lease(start: Any, tools: Any) -> None:
    blocks = tools.chain(2)
    async with start() as store:
        await tools.put(store.client, blocks)
        await on_lane(store.client)
        lookup = asyncio.create_task(store.client.lookup(keys(blocks), 30))
        await asyncio.sleep(0)  # the request is on its way
        lookup.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lookup
        await store.client.lookup([])
        await until(lambda: store.service.stats().leases == 0)
        assert (await store.client.lookup(keys(blocks))).hit == 2


@pytest.mark.parametrize("lane_port", [0, -1])
async def test_an_answer_that_comes_too_late_leaves_no_lease(start: Any, tools: Any, lane_port: int) -> None:
    blocks = tools.chain(2)
    async with start(lane_port=lane_port) as store:
        await tools.put(store.client, blocks)
        if lane_port == 0:
            await on_lane(store.client)
        lane, before = store.client._lane.lane, store.service.stats().lookups
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="DEADLINE_EXCEEDED"):
                await store.client.lookup(keys(blocks), 30, timeout_s=0)
        await until(lambda: store.service.stats().lookups == before + 3)
        await until(lambda: store.service.stats().leases == 0)
        assert store.client._lane.lane is lane, "it brings the late answers"


async def test_places_that_are_given_too_late_come_back(
    start: Any, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = tools.chain(2)
    async with start() as store:
        begin, begun = store.service._writer.begin, []

        def seen(blocks: Any) -> Any:
            begun.append(begin(blocks))
            return begun[-1]

        monkeypatch.setattr(store.service._writer, "begin", seen)
        with pytest.raises(StoreUnavailable, match="DEADLINE_EXCEEDED"):
            async with store.client.write(blocks, timeout_s=0):
                raise AssertionError("it was in time")
        await until(lambda: bool(begun))
        assert all(place.ticket_id for place in begun[0])
        await until(lambda: store.service.stats().tickets == 0)
        assert await tools.put(store.client, blocks) == ["", ""]


async def test_what_a_call_refuses_the_lane_refuses(start: Any, tools: Any) -> None:
    blocks = tools.chain(1)
    async with start(max_leases=1) as store:
        await tools.put(store.client, blocks)
        await on_lane(store.client)
        await store.client.lookup(keys(blocks), 30)
        with pytest.raises(StoreUnavailable, match="all leases are taken"):
            await store.client.lookup(keys(blocks), 30)


async def test_a_lane_that_breaks_is_replaced(start: Any, tools: Any) -> None:
    blocks = tools.chain(2)
    async with start() as store:
        await tools.put(store.client, blocks)
        await on_lane(store.client)
        store.client._lane.lane._transport.abort()
        assert (await store.client.lookup(keys(blocks))).hit == 2
        await until(lambda: store.client._lane.lane is not None and not store.client._lane.lane.closed)
        assert (await store.client.lookup(keys(blocks))).hit == 2


async def test_without_a_lane_lookups_are_calls(start: Any, tools: Any) -> None:
    blocks = tools.chain(2)
    async with start(lane_port=-1) as store:
        await tools.put(store.client, blocks)
        for _ in range(3):
            assert (await store.client.lookup(keys(blocks))).hit == 2
        assert store.client._lane.joining is None
        store.service.lane_port = 1  # nobody listens there
        for _ in range(3):
            assert (await store.client.lookup(keys(blocks))).hit == 2
        await until(lambda: store.client._lane.joining is None)
        assert (await store.client.lookup(keys(blocks))).hit == 2
        assert store.client._lane.joining is None, "it is left alone for a while"


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.PREFACE + b"\xff" * 40,
        frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0, b"12345"),
        frames.PREFACE + frames.frame(frames.HEADERS, 4, 1) + frames.frame(frames.DATA, 0, 1, b"\1\0\0\0\1x"),
        frames.PREFACE + frames.frame(frames.HEADERS, 4, 1) + frames.frame(frames.DATA, 0, 1, b"\0\xff\xff\xff\xff"),
    ],
)
async def test_noise_ends_its_own_connection_only(start: Any, tools: Any, noise: bytes) -> None:
    async with start() as store:
        await on_lane(store.client)
        reader, writer = await asyncio.open_connection("127.0.0.1", store.service.lane_port)
        writer.write(noise)
        async with asyncio.timeout(60):
            await reader.read()
        writer.close()
        assert (await store.client.lookup([b"k" * 16])).hit == 0
        assert not store.client._lane.lane.closed
