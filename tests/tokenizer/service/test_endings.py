"""Requests that end early: cancelled, left by their gateway, or cut because the gateway is slow."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import frontend_pb2_grpc
from tests.tokenizer.service.rig import Rig, make_rig, submit
from tests.tokenizer.service.streams import stream_client
from tests.waiting import until


def running(rig: Rig) -> int:
    return rig.tokenizer.service.running


def slots_in_use(rig: Rig) -> int:
    return sum(link.flights for link in rig.tokenizer.pool.links.values())


async def test_cancel_before_the_first_token(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        rig.engine.turning = False
        stream = rig.client.stream(submit(max_tokens=None))
        await until(lambda: slots_in_use(rig) == 1)
        stream.close()
        await until(lambda: running(rig) == 0)
        assert slots_in_use(rig) == 1  # the slot is not used again before the engine has ended it
        rig.engine.turning = True
        await rig.at_rest()
        assert rig.client.in_flight == 0


async def test_cancel_after_the_first_token_is_answered_at_once(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig, raw_session(rig) as call:
        await call.write(pb.SessionUp(submits=[numbered(7, submit(max_tokens=None))]))
        assert (await call.read()).deltas[0].text
        rig.engine.turning = False
        await call.write(pb.SessionUp(cancels=[pb.Cancel(id=7), pb.Cancel(id=8)]))
        last = await last_delta(call, 7)
        assert last.finish == pb.FINISH_CANCELLED
        assert last.usage.completion_tokens > 0
        rig.engine.turning = True
        await rig.at_rest()


async def test_cancel_while_it_waits_for_a_slot(tmp_path: Path) -> None:
    async with make_rig(tmp_path, slots=8) as rig:  # one slot a front end
        rig.engine.turning = False
        first = rig.client.stream(submit(max_tokens=None))
        await until(lambda: slots_in_use(rig) == 1)
        second = rig.client.stream(submit(max_tokens=3))
        third = rig.client.stream(submit(max_tokens=2))
        (link,) = rig.tokenizer.pool.links.values()
        await until(lambda: link.waiting == 2)
        second.close()
        await until(lambda: running(rig) == 2)
        first.close()
        rig.engine.turning = True
        assert "".join([delta.text async for delta in third]) == "hellohello"
        await rig.at_rest()
        assert len(rig.engine.script.prompts) == 2


async def test_cancel_while_it_is_encoded_or_scheduled(tmp_path: Path) -> None:
    async with make_rig(tmp_path, engine_wait_s=30.0) as rig:
        rig.mesh.show([])
        await until(lambda: not rig.tokenizer.live.engines)
        stream = rig.client.stream(submit())
        await until(lambda: running(rig) == 1)
        stream.close()
        await rig.at_rest()


async def test_a_gateway_that_vanishes_takes_its_requests_along(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        for half_close in (True, False):
            async with raw_session(rig) as call:
                await call.write(pb.SessionUp(submits=[numbered(i, submit(max_tokens=None)) for i in range(1, 5)]))
                await call.read()
                if half_close:
                    await call.done_writing()
                    await read_to_end(call)
            await rig.at_rest()
        assert await ended(rig, "cancelled") == 8
        assert (await rig.collect(submit(max_tokens=1)))[0] == "hello"


async def test_a_slow_gateway_is_cut_off_and_blocks_nobody(tmp_path: Path) -> None:
    async with make_rig(tmp_path, slots=256, max_unsent_deltas=200) as rig:
        async with raw_session(rig) as call:
            many = [numbered(i, submit("hello" * 20, max_tokens=3000)) for i in range(1, 31)]
            await call.write(pb.SessionUp(submits=many))
            await call.initial_metadata()
            await until(lambda: len(rig.tokenizer.service.sessions) == 2)
            async with asyncio.timeout(60):
                while len(rig.tokenizer.service.sessions) == 2:
                    assert (await rig.collect(submit(max_tokens=2)))[0] == "hellohello"
            with pytest.raises(grpc.aio.AioRpcError, match="deltas unread") as caught:
                await read_to_end(call)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await rig.at_rest()


async def test_sessions_use_the_same_ids_without_harm(tmp_path: Path) -> None:
    async with make_rig(tmp_path, slots=256) as rig:

        async def session(word: str) -> list[str]:
            async with stream_client(f"127.0.0.1:{rig.tokenizer.port}") as client:
                await until(lambda: client.connected)
                streams = [client.stream(submit(word, max_tokens=5)) for _ in range(8)]
                return ["".join([delta.text async for delta in stream]) for stream in streams]

        words = ["hello", " world", "or"]
        texts = await asyncio.gather(*map(session, words))
        assert texts == [[word * 5] * 8 for word in words]
        await until(lambda: len(rig.tokenizer.service.sessions) == 1)


async def test_an_id_used_twice_ends_the_session(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        async with raw_session(rig) as call:
            await call.write(pb.SessionUp(submits=[numbered(1, submit(max_tokens=None)) for _ in range(2)]))
            with pytest.raises(grpc.aio.AioRpcError, match="already used") as caught:
                await read_to_end(call)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await rig.at_rest()


async def test_too_many_requests_are_answered_with_429(tmp_path: Path) -> None:
    async with make_rig(tmp_path, max_requests=2) as rig:
        rig.engine.turning = False
        streams = [rig.client.stream(submit(max_tokens=1)) for _ in range(3)]
        (delta,) = [delta async for delta in streams[2]]
        assert (delta.finish, delta.error.http_status) == (pb.FINISH_ERROR, 429)
        rig.engine.turning = True
        assert ["".join([d.text async for d in stream]) for stream in streams[:2]] == ["hello"] * 2


async def test_drain_lets_running_requests_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        rig.engine.turning = False
        before = rig.client.stream(submit(max_tokens=3))
        await until(lambda: running(rig) == 1)
        draining = asyncio.create_task(rig.tokenizer.drain())
        await until(lambda: rig.tokenizer.service.draining)
        _, last = await rig.collect(submit())
        assert (last.error.http_status, last.error.code) == (503, "draining")
        assert not (await rig.client.describe()).ready
        assert not draining.done()
        rig.engine.turning = True
        assert "".join([delta.text async for delta in before]) == "hellohellohello"
        await draining


async def test_random_disconnects_leave_nothing_behind(tmp_path: Path) -> None:
    async with make_rig(tmp_path, slots=128) as rig:
        await rig.collect(submit())
        tasks_before = len(asyncio.all_tasks())

        async def one(i: int) -> None:
            with rig.client.stream(submit("hello", max_tokens=50 + i, stop=["xyz"] * (i % 2))) as stream:
                for _ in range(i % 4):
                    await anext(stream)

        for burst in range(6):
            await asyncio.gather(*(one(i) for i in range(burst, burst + 40)))
        await rig.at_rest()
        assert rig.client.in_flight == 0
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        (session,) = rig.tokenizer.service.sessions
        assert not session.requests


class raw_session:
    """A session with nothing between the test and the wire."""

    def __init__(self, rig: Rig) -> None:
        # The transport must not take much on behalf of a gateway that does not read.
        options = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096))
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{rig.tokenizer.port}", options=options)

    async def __aenter__(self) -> Any:
        return frontend_pb2_grpc.FrontendStub(self.channel).Session()

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()


def numbered(id: int, request: pb.Submit) -> pb.Submit:
    request.id = id
    return request


async def read_to_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def last_delta(call: Any, id: int) -> pb.Delta:
    while True:
        for delta in (await call.read()).deltas:
            if delta.id == id and delta.finish:
                return delta


async def ended(rig: Rig, reason: str) -> float:
    value = rig.tokenizer.registry.get_sample_value("hostless:tokenizer_requests_total", {"reason": reason})
    return value or 0.0
