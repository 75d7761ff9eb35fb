"""Engines and schedulers that go away while requests run."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import kvstore_pb2, kvstore_pb2_grpc, scheduler_pb2
from services.common import rpc
from services.common.keys import block_keys, root_key
from services.fabric.ring import Finish
from services.fabric.ring.layout import kv_reads
from tests.tokenizer.service.rig import Rig, echo_script, make_rig, submit
from tests.waiting import until

FAST: dict[str, Any] = {"ttl_ms": 600}


async def test_unstarted_requests_move_to_another_engine(tmp_path: Path) -> None:
    async with make_rig(tmp_path, engines=2, **FAST) as rig:
        rig.engine.turning = False
        streams = [rig.client.stream(submit(max_tokens=2)) for _ in range(12)]  # more than one engine's slots
        await until(lambda: flying(rig, 0) == 8)
        await rig.engine.kill()
        assert ["".join([delta.text async for delta in stream]) for stream in streams] == ["hellohello"] * 12
        await rig.at_rest()


async def test_a_started_request_goes_on_elsewhere_from_its_tokens(tmp_path: Path) -> None:
    def count(prompt: list[int], seed: int, max_tokens: int) -> tuple[list[int], Finish]:
        """Each token is the one before plus one, so a repeated or skipped one would show."""
        return [prompt[-1] + 1 + i for i in range(max_tokens)], Finish.LENGTH

    async with make_rig(tmp_path, engines=2, script=count, **FAST) as rig:
        rig.engine.script.pace = 1
        request = submit(max_tokens=60, stop=["Z!!"])
        request.token_ids.ids.append(40)
        with rig.client.stream(request) as stream:
            deltas = [await anext(stream)]
            await rig.engine.kill()
            deltas += [delta async for delta in stream]
        table = rig.tokenizer.shelf.loaded("toy")
        assert table
        expected = b"".join(table.table.bytes[i] for i in range(41, 101)).decode(errors="replace")
        assert "".join(delta.text for delta in deltas) == expected
        assert (deltas[-1].finish, deltas[-1].usage.completion_tokens) == (pb.FINISH_LENGTH, 60)
        assert deltas[-1].usage.prompt_tokens == 1
        (moved,) = rig.engines[1].script.prompts
        assert moved == list(range(40, 40 + len(moved)))
        assert len(moved) > 1


async def test_a_started_request_moves_once_only(tmp_path: Path) -> None:
    async with make_rig(tmp_path, engines=3, **FAST) as rig:
        for engine in rig.engines:
            engine.script.pace = 1
        with rig.client.stream(submit(max_tokens=None)) as stream:
            await anext(stream)
            await rig.engine.kill()
            await until(lambda: flying(rig, 1) == 1 and bool(rig.engines[1].script.prompts))
            await until(lambda: rig.tokenizer.metrics.generated > len(rig.engines[1].script.prompts[0]) + 5)
            await rig.engines[1].kill()
            last = [delta async for delta in stream][-1]
        assert (last.finish, last.error.http_status, last.error.code) == (pb.FINISH_ERROR, 500, "engine_lost")
        assert not rig.engines[2].script.prompts


async def test_a_restarted_engine_is_another_engine(tmp_path: Path) -> None:
    async with make_rig(tmp_path, **FAST) as rig:
        rig.engine.turning = False
        stream = rig.client.stream(submit(max_tokens=2))
        await until(lambda: flying(rig, 0) == 1)
        rig.engine.owner.end(0)  # what the old process held is gone; the new one has the same name
        rig.engine.leases.clear()
        rig.engine.epoch = 2
        rig.engine.turning = True
        rig.mesh.show(rig.engines)
        assert "".join([delta.text async for delta in stream]) == "hellohello"
        await until(lambda: list(rig.tokenizer.pool.links) == [("engine-0", 2)])


async def test_without_any_engine_the_wait_is_bounded(tmp_path: Path) -> None:
    async with make_rig(tmp_path, engine_wait_s=0.3) as rig:
        rig.mesh.show([])
        await until(lambda: not rig.tokenizer.live.engines)
        _, last = await rig.collect(submit())
        assert (last.error.http_status, last.error.code) == (503, "no_engine")


async def test_an_engine_that_comes_in_time_serves_those_who_waited(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        rig.mesh.show([])
        await until(lambda: not rig.tokenizer.live.engines)
        stream = rig.client.stream(submit(max_tokens=1))
        await until(lambda: rig.tokenizer.service.running == 1)
        rig.mesh.show(rig.engines)
        assert "".join([delta.text async for delta in stream]) == "hello"


async def test_a_table_emptied_by_a_scheduler_restart_does_not_stop_running_requests(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        with rig.client.stream(submit(max_tokens=600)) as stream:
            await anext(stream)
            rig.mesh.show([])
            await until(lambda: not rig.tokenizer.live.engines)
            rig.mesh.show(rig.engines)
            last = [delta async for delta in stream][-1]
        assert (last.finish, last.usage.completion_tokens) == (pb.FINISH_LENGTH, 600)
        assert len(rig.engine.script.prompts) == 1


async def test_an_engine_that_left_is_let_go_when_nothing_runs_on_it(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        with rig.client.stream(submit(max_tokens=300)) as stream:
            await anext(stream)
            rig.mesh.show([])
            assert [delta async for delta in stream][-1].finish == pb.FINISH_LENGTH
        await until(lambda: not rig.tokenizer.pool.links)
        await until(lambda: not rig.engine.leases)


async def test_while_the_scheduler_is_away_engines_take_turns(tmp_path: Path) -> None:
    async with make_rig(tmp_path, engines=2) as rig:
        await rig.mesh.stop()
        replies = await asyncio.gather(*(rig.collect(submit(max_tokens=1)) for _ in range(20)))
        assert [text for text, _ in replies] == ["hello"] * 20
        assert [len(engine.script.prompts) for engine in rig.engines] == [10, 10]
        await rig.mesh.start()
        rig.mesh.show(rig.engines[1:])
        await until(lambda: len(rig.tokenizer.live.engines) == 1)
        assert (await rig.collect(submit(max_tokens=1)))[0] == "hello"


@pytest.mark.parametrize(
    ("finish", "status", "code"),
    [
        (Finish.TOO_LARGE, 400, "context_length_exceeded"),
        (Finish.BAD_RECORD, 500, "engine_error"),
        (Finish.ENGINE_ERROR, 500, "engine_error"),
    ],
)
async def test_what_an_engine_can_t_do_is_an_error(tmp_path: Path, finish: Finish, status: int, code: str) -> None:
    async with make_rig(tmp_path, script=lambda p, s, m: ([], finish)) as rig:
        _, last = await rig.collect(submit())
        assert (last.error.http_status, last.error.code) == (status, code)
        rig.engine.script.script = echo_script
        assert (await rig.collect(submit(max_tokens=1)))[0] == "hello"


async def test_an_engine_that_fails_on_a_request_hands_it_to_the_next(tmp_path: Path) -> None:
    async with make_rig(tmp_path, engines=2) as rig:
        rig.engine.script.script = lambda p, s, m: (p[:1], Finish.ENGINE_ERROR)
        text, last = await rig.collect(submit("hello world", max_tokens=4))
        assert (text, last.finish) == ("hello" + "hello worldhello", pb.FINISH_LENGTH)


class FakeStore(kvstore_pb2_grpc.KvStoreServicer):  # type: ignore[misc]
    def __init__(self) -> None:
        self.hit = 0
        self.away = asyncio.Event()
        self.away.set()
        self.asked: list[bytes] = []
        self.leases: set[int] = set()

    async def Lookup(self, request: kvstore_pb2.LookupRequest, context: Any) -> kvstore_pb2.LookupReply:
        await self.away.wait()
        self.asked.append(request.keys)
        self.leases.add(len(self.asked))
        return kvstore_pb2.LookupReply(hit=self.hit, lease_id=len(self.asked), ttl_ms=request.ttl_ms)

    async def Release(self, request: kvstore_pb2.ReleaseRequest, context: Any) -> kvstore_pb2.ReleaseReply:
        self.leases.discard(request.lease_id)
        return kvstore_pb2.ReleaseReply()


async def test_stored_blocks_are_found_told_and_released(tmp_path: Path) -> None:
    store = FakeStore()
    register = kvstore_pb2_grpc.add_KvStoreServicer_to_server
    async with (
        rpc.serve("127.0.0.1:0", lambda s: register(store, s), ["hostless.v1.KvStore"], grace_s=0) as server,
        make_rig(tmp_path, kvstore=f"127.0.0.1:{server.port}", kv_lookup_s=30.0) as rig,
    ):
        store.hit = 2
        prompt = "hello" * 192
        _, last = await rig.collect(submit(prompt, max_tokens=1, tenant="t"))
        (record,) = rig.engine.script.records
        (ids,) = rig.engine.script.prompts
        root = root_key("toy-layout", "t")
        assert store.asked == [b"".join(block_keys(root, ids[:191]))]  # the third block holds the last token
        assert (record["cached_tokens"], record["kv_reads"], bytes(record["kv_root"])) == (128, kv_reads(0, 2), root)
        assert rig.mesh.bursts[0][0].cached_tokens == 128
        assert last.usage.cached_tokens == 0  # the fake engine says that it loaded none
        await until(lambda: not store.leases)
        await rig.collect(submit("hello", max_tokens=1))
        assert len(store.asked) == 1  # no whole block to ask for


async def test_a_store_that_is_away_is_a_miss(tmp_path: Path) -> None:
    store = FakeStore()
    register = kvstore_pb2_grpc.add_KvStoreServicer_to_server
    async with (
        rpc.serve("127.0.0.1:0", lambda s: register(store, s), ["hostless.v1.KvStore"], grace_s=0) as server,
        make_rig(tmp_path, kvstore=f"127.0.0.1:{server.port}", kv_lookup_s=0.02) as rig,
    ):
        store.away.clear()
        text, _ = await rig.collect(submit("hello" * 70, max_tokens=1))
        assert text == "hello"
        (record,) = rig.engine.script.records
        assert (record["cached_tokens"], record["kv_reads"]) == (0, 0)
        assert rig.tokenizer.kv.failures == 1
        store.away.set()


def flying(rig: Rig, engine: int) -> int:
    links = {key[0]: link for key, link in rig.tokenizer.pool.links.items()}
    link = links.get(rig.engines[engine].name)
    return link.flights if link else 0


async def test_a_fault_of_one_request_stays_its_own(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        rig.engine.script.script = lambda p, s, m: ([10**6] if s == 1 else p[:1] * m, Finish.LENGTH)
        bad, good = await asyncio.gather(
            rig.collect(submit(max_tokens=2, sampling={"seed": 1})), rig.collect(submit(sampling={"seed": 2}))
        )
        assert (bad[1].finish, bad[1].error.http_status) == (pb.FINISH_ERROR, 500)
        assert good[0] == "hello" * 8
        await rig.at_rest()


async def test_an_engine_that_goes_while_the_model_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_rig(tmp_path) as rig:
        live, read = rig.tokenizer.live, rig.tokenizer.shelf.get
        table = scheduler_pb2.PlacementTable(engines=[rig.engine.info])

        async def slow(info: scheduler_pb2.EngineInfo) -> Any:
            monkeypatch.undo()
            live.engines = {}
            asyncio.get_running_loop().call_later(0.05, live.update, table)
            return await read(info)

        monkeypatch.setattr(rig.tokenizer.shelf, "get", slow)
        text, last = await rig.collect(submit())
        assert (text, last.finish) == ("hello" * 8, pb.FINISH_LENGTH), last


async def test_an_engine_that_can_t_be_attached(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        ghost = scheduler_pb2.EngineInfo()
        ghost.CopyFrom(rig.engine.info)
        ghost.engine_id, ghost.address = "ghost", "127.0.0.1:1"
        rig.mesh.show([SimpleNamespace(info=ghost), rig.engine])  # type: ignore[list-item]
        await until(lambda: "ghost" in rig.tokenizer.live.engines)
        text, last = await rig.collect(submit())
        assert (text, last.finish) == ("hello" * 8, pb.FINISH_LENGTH), last
        assert [list(burst[0].exclude_engines) for burst in rig.mesh.bursts] == [[], ["ghost"]]
