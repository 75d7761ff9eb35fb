"""The service as a process: ports, health, metrics, SIGTERM; and its settings."""

import asyncio
import os
import re
import signal
import urllib.request
from contextlib import AbstractAsyncContextManager

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common import rpc
from services.common.settings import SettingError, load
from services.tokenizer.client import FrontendUnavailable
from services.tokenizer.settings import TokenizerSettings
from tests.processes import ServiceProcess, service
from tests.tokenizer.service.rig import submit
from tests.tokenizer.service.streams import stream_client
from tests.waiting import PATIENCE_S


def tokenizer(*flags: str, wait: bool = True) -> AbstractAsyncContextManager[ServiceProcess]:
    return service("tokenizer", "--scheduler", "127.0.0.1:1", *flags, wait=wait)


async def test_a_tokenizer_without_a_mesh_serves_and_stops_cleanly() -> None:
    async with tokenizer() as running, stream_client(running.address) as client:
        described = await client.describe()
        assert (described.ready, described.reason) == (False, "no engine lives")
        async with rpc.channel(client.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(service="hostless.v1.Frontend"))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        url = f"http://{running.metrics}/metrics"
        page = (await asyncio.to_thread(urllib.request.urlopen, url, timeout=PATIENCE_S)).read().decode()
        assert re.search(r"^hostless:tokenizer_engines_attached 0\.0$", page, re.MULTILINE)
        assert re.search(r"^hostless:tokenizer_generated_tokens_total 0\.0$", page, re.MULTILINE)
        running.process.send_signal(signal.SIGTERM)
        code, said = await running.ended()
        assert code == 0, said


async def test_a_taken_port_is_named_and_the_exit_code_is_2() -> None:
    async with tokenizer() as first, tokenizer("--address", first.address, wait=False) as second:
        code, said = await second.ended()
        assert code == 2, said
        assert first.address in said


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--address", "7020"], "address"),
        (["--kvstore", "store"], "kvstore"),
        (["--poll-busy-s", "0.0001"], "poll-busy-s"),
        (["--poll-idle-s", "0.0005"], "poll-idle-s"),
        (["--max-requests", "0"], "max-requests"),
        (["--engine-wait-s", "0"], "engine-wait-s"),
        (["--grace-s", "-1"], "grace-s"),
        (["--no-such-thing", "1"], "no-such-thing"),
    ],
)
def test_wrong_settings_are_named(flags: list[str], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        load(TokenizerSettings, "tokenizer", flags, {})


def test_a_front_end_is_named_by_host_and_process_unless_told() -> None:
    assert TokenizerSettings().front_end_id.endswith(str(os.getpid()))
    assert TokenizerSettings(name="dpu-3").front_end_id == "dpu-3"


async def test_the_client_says_when_there_is_no_tokenizer() -> None:
    async with stream_client("127.0.0.1:1") as client:
        with pytest.raises(FrontendUnavailable, match=r"127\.0\.0\.1:1"):
            client.stream(submit())
        with pytest.raises(FrontendUnavailable, match="UNAVAILABLE"):
            await client.describe()
