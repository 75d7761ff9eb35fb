"""A real model behind the ring: health while it loads, its tokens, and a stop in the middle of loading."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common import rpc
from services.common.paths import models_dir
from services.fabric.ring import Finish
from services.gpu_backend.client import EngineClient, EngineUnavailable
from tests.gpu_backend.service.front_end import FrontEnd
from tests.gpu_backend.service.processes import engine
from tests.processes import ServiceProcess

MODEL = "SmolLM2-135M-Instruct"
TORCH = ("--engine", "torch", "--model", MODEL, "--kv-pages", "16")
PROMPT = [504, 3575, 282, 4649, 314]  # "The capital of France is"

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not (models_dir() / MODEL).is_dir(), reason=f"{MODEL} is not here: hostless pull"),
]


async def listening(running: ServiceProcess) -> str:
    """Its address, as soon as it has one."""
    assert running.process.stderr
    async with asyncio.timeout(60):
        async for line in running.process.stderr:
            if (told := json.loads(line))["message"] == "listening":
                return f"127.0.0.1:{told['port']}"
    raise EOFError


async def test_not_serving_while_it_loads_then_tokens(tmp_path: Path) -> None:
    async with engine(tmp_path, *TORCH, wait=False) as running:
        address = await listening(running)
        client = EngineClient(address)
        with pytest.raises(EngineUnavailable, match="loading"):
            await client.attach("early")
        async with rpc.channel(address) as channel:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await running.serving()
        front_end = await FrontEnd.attach(client)
        numbers = [front_end.submit(PROMPT, 8) for _ in range(2)]
        for number in numbers:
            assert await front_end.finished(number) is Finish.LENGTH
        one, two = (front_end.tokens(number) for number in numbers)
        assert one == two
        assert one[0] == 7042  # " Paris"
        await client.close()


async def test_a_stop_while_it_loads_ends_the_loading(tmp_path: Path) -> None:
    async with engine(tmp_path, *TORCH, wait=False) as running:
        await listening(running)
        running.process.send_signal(signal.SIGTERM)
        code, said = await running.ended()
        assert (code, '"serving"' in said) == (0, False), said
