"""gRPC plumbing: health, reflection, deadlines, a taken port, one trace over services."""

import asyncio
import json
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from hostless.v1 import kvstore_pb2, kvstore_pb2_grpc
from services.common import rpc

NAME = "hostless.v1.KvStore"


class Slow(kvstore_pb2_grpc.KvStoreServicer):
    async def Stats(self, request: object, context: object) -> kvstore_pb2.StatsReply:
        return kvstore_pb2.StatsReply(blocks=7)

    async def Abort(self, request: object, context: object) -> kvstore_pb2.AbortReply:
        await asyncio.Event().wait()
        raise AssertionError


def register(server: grpc.aio.Server) -> None:
    kvstore_pb2_grpc.add_KvStoreServicer_to_server(Slow(), server)


async def test_health_follows_set_serving() -> None:
    async with rpc.serve("127.0.0.1:0", register, [NAME]) as server, rpc.channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        ask = health_pb2.HealthCheckRequest(service=NAME)
        assert (await stub.Check(ask)).status == health_pb2.HealthCheckResponse.SERVING
        await server.set_serving(False)
        assert (await stub.Check(ask)).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_reflection_lists_the_service() -> None:
    async with rpc.serve("127.0.0.1:0", register, [NAME]) as server, rpc.channel(f"127.0.0.1:{server.port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        reply = await call.read()
        assert NAME in {service.name for service in reply.list_services_response.service}
        call.cancel()


async def test_every_unary_call_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "DEADLINE_S", 0.05)
    serving = rpc.serve("127.0.0.1:0", register, [NAME], grace_s=0)
    async with serving as server, rpc.channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await kvstore_pb2_grpc.KvStoreStub(channel).Abort(kvstore_pb2.AbortRequest())
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_taken_port_is_named() -> None:
    async with rpc.serve("127.0.0.1:0", register, [NAME]) as server:
        with pytest.raises(rpc.PortTaken, match=str(server.port)):
            async with rpc.serve(f"127.0.0.1:{server.port}", register, [NAME]):
                pass


async def test_wait_ready_has_a_deadline() -> None:
    async with rpc.channel("127.0.0.1:1") as channel:
        with pytest.raises(TimeoutError):
            await rpc.wait_ready(channel, 0.1)


TRACED = """
import asyncio, sys
from services.common import lifecycle, rpc, telemetry
sys.path.insert(0, {here!r})
from test_rpc import register, NAME
from hostless.v1 import kvstore_pb2, kvstore_pb2_grpc

async def main(life):
    serving = rpc.serve("127.0.0.1:0", register, [NAME])
    async with serving as server, rpc.channel(f"127.0.0.1:{{server.port}}") as channel:
        with telemetry.tracer.start_as_current_span("root"):
            await kvstore_pb2_grpc.KvStoreStub(channel).Stats(kvstore_pb2.StatsRequest())

sys.exit(lifecycle.run("test", main))
"""


async def test_server_span_is_a_child_of_the_callers(tmp_path: Path) -> None:
    import os
    import sys

    spans = tmp_path / "spans"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        TRACED.format(here=str(Path(__file__).parent)),
        env={**os.environ, "HOSTLESS_TRACE_FILE": str(spans)},
    )
    assert await asyncio.wait_for(process.wait(), 60) == 0
    by_name = {span["name"]: span for span in map(json.loads, spans.read_text().splitlines())}
    child, root = by_name["hostless.v1.KvStore/Stats"], by_name["root"]
    assert child["context"]["trace_id"] == root["context"]["trace_id"]
    assert child["parent_id"] == root["context"]["span_id"]
