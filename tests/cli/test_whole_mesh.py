"""hostless up with the real services: what `make demo` and `make up` rest on."""

import asyncio
import os
import signal
import sys

import pytest

pytestmark = pytest.mark.model

HOSTLESS = (sys.executable, "-m", "services.cli.main")
MODELS = os.environ.get("HOSTLESS_MODELS", "")  # before own_places moves it


@pytest.fixture(autouse=True)
def real_models(own_places: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLESS_MODELS", MODELS)


async def start(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*HOSTLESS, *arguments, stdout=pipe, stderr=pipe)


async def test_up_a_command_down() -> None:
    command = ["chat", "--message", "Hello", "--max-tokens", "4", "--stats"]
    up = await start("up", "--engine", "synthetic", "--port", "0", "--", *HOSTLESS, *command)
    out, err = await asyncio.wait_for(up.communicate(), 120)
    assert up.returncode == 0, err.decode()
    assert out.strip()
    for name in ("kvstore", "global_scheduler", "gpu_backend", "tokenizer", "gateway"):
        assert f"✓ {name}" in err.decode()
        assert f"■ {name}" in err.decode()
    assert "4 tokens" in err.decode()


async def test_up_until_a_signal_seen_by_status_and_bench() -> None:
    up = await start("up", "--engine", "synthetic", "--port", "0", "--engines", "2", "--no-kvstore")
    assert up.stderr
    shown = b""
    async with asyncio.timeout(120):
        while b"Ctrl-C" not in shown:
            line = await up.stderr.readline()
            assert line, shown.decode()
            shown += line
    assert b'"model": "SmolLM2-135M-Instruct"' in shown

    status = await start("status")
    out, err = await asyncio.wait_for(status.communicate(), 30)
    assert status.returncode == 0, err.decode()
    assert out.decode().count("accepting") == 2
    assert "kvstore" not in out.decode()

    url = next(word for word in shown.decode().split() if word.startswith("http://"))
    bench = await start("bench", "--url", url, "-n", "4", "-c", "2", "--output-tokens", "5")
    out, err = await asyncio.wait_for(bench.communicate(), 60)
    assert bench.returncode == 0, out + err
    assert "4 of 4 requests" in out.decode()
    assert "20 generated" in " ".join(out.decode().split())
    assert "gateway" in out.decode()  # its CPU time: the mesh was found

    up.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(up.communicate(), 60)
    assert up.returncode == 0, err.decode()
