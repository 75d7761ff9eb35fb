"""Engine cuda as a process: every scheduler's tokens, its end by signal, by kill and by itself, and what can't fit."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.gpu.engine.hardware  # noqa: F401
from services.fabric.ring import Finish
from services.gpu_backend.client import EngineClient
from tests.gpu_backend.service.front_end import FrontEnd
from tests.gpu_backend.service.processes import engine
from tests.processes import ServiceProcess
from tests.waiting import until

pytestmark = pytest.mark.gpu

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
}  # fmt: skip
CUDA = ("--engine", "cuda", "--model", "drawn", "--weights", "random", "--dtype", "float32", "--lanes", "4",
        "--step-tokens", "256", "--kv-pages", "20", "--device-deadline-s", "60")  # fmt: skip
LENGTHS = (5, 64, 300, 1, 17, 129, 63, 400)


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "models" / "drawn").mkdir(parents=True)
    (tmp_path / "models" / "drawn" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("HOSTLESS_MODELS", str(tmp_path / "models"))
    return iter([None])


@pytest.fixture
def shm() -> Iterator[Path]:
    """In memory: a GPU maps no file of a disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


async def answers(running: ServiceProcess, count: int) -> list[list[int]]:
    """Of eight prompts at once: twice the lanes, more than the pages hold, so that some wait and some are evicted."""
    client = EngineClient(running.address)
    front_end = await FrontEnd.attach(client)
    prompts = [[(7 * i + 31 * length) % 4096 for i in range(length)] for length in LENGTHS]
    numbers = [front_end.submit(prompt, count) for prompt in prompts]
    for number in numbers:
        assert await front_end.finished(number) is Finish.LENGTH
    await client.close()
    return [front_end.tokens(number) for number in numbers]


def test_every_scheduler_gives_the_same_tokens_and_ends_when_asked_to(shm: Path) -> None:
    async def tokens(kind: str) -> list[list[int]]:
        async with engine(shm, *CUDA, "--scheduler-kind", kind) as running:
            found = await answers(running, 200)
            running.process.send_signal(signal.SIGTERM)
            code, said = await running.ended()
            assert code == 0, said
            return found

    found = {kind: asyncio.run(tokens(kind)) for kind in ("device", "host", "host-overlap")}
    assert len({token for each in found["host"] for token in each}) > 50
    assert found["device"] == found["host"]
    assert found["host-overlap"] == found["host"]


def test_a_killed_engine_leaves_the_gpu_to_the_next(shm: Path) -> None:
    async def both() -> tuple[list[list[int]], list[list[int]]]:
        async with engine(shm, *CUDA) as first:
            found = await answers(first, 20)
            client = EngineClient(first.address)
            front_end = await FrontEnd.attach(client, "again")
            number = front_end.submit([1, 2, 3], 1000)
            await until(lambda: front_end.look(number)[2] > 10)
            os.kill(first.process.pid, signal.SIGKILL)
            await first.ended()
            await client.close()
        async with engine(shm, *CUDA) as second:
            return found, await answers(second, 20)

    before, after = asyncio.run(both())
    assert before == after


def test_a_scheduler_that_ends_by_itself_ends_the_process_with_its_reason(shm: Path) -> None:
    async def end() -> tuple[int, str]:
        async with engine(shm, *CUDA, "--device-deadline-s", "1.5") as running:
            return await running.ended()

    code, said = asyncio.run(end())
    assert code == 1
    assert "the scheduler on the GPU has ended by itself: deadline" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kv-pages", "90000000"), ["90000000 KV pages", "are free", "pages fit"]),
        (("--gpu", "97"), ["gpu: there is no GPU 97"]),
    ],
)
def test_what_does_not_fit_is_named(shm: Path, flags: tuple[str, ...], words: list[str]) -> None:
    async def end() -> tuple[int, str]:
        async with engine(shm, *CUDA, *flags, wait=False) as running:
            return await running.ended()

    code, said = asyncio.run(end())
    assert code == 2, said
    (line,) = [line for line in said.splitlines() if line.startswith("hostless gpu_backend:")]
    assert all(word in line for word in words), line
