"""The real process: its exit codes, its signals, one trace a request, request ids in its log."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.gateway.conftest import chat_body
from tests.gateway.fakes import WAIT_S, FakeTokenizer

START_S = 60.0


class Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, object]] = []
        self._reading = asyncio.create_task(self._read())
        self._changed = asyncio.Event()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(json.loads(line) if line.startswith(b"{") else {"message": line.decode().strip()})
            self._changed.set()
            self._changed = asyncio.Event()

    async def logged(self, message: str) -> dict[str, object]:
        """The first line of the log with this message, when it is there."""
        async with asyncio.timeout(START_S):
            while True:
                for line in self.lines:
                    if line["message"] == message:
                        return line
                await self._changed.wait()

    async def ended(self) -> int:
        async with asyncio.timeout(START_S):
            code = await self.process.wait()
            await self._reading
        return code


@asynccontextmanager
async def started(*flags: str, **environ: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.gateway", "--scheduler", "", *flags),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environ},
    )
    running = Process(process)
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await running.ended()


async def ready(url: str, http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            async with http.get(f"{url}/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)


async def test_a_life(fake: FakeTokenizer, tmp_path: Path) -> None:
    """Serves, reads its keys again on SIGHUP, and on SIGTERM finishes what runs and exits with 0."""
    fake.script = fake.then_hold
    keys, spans = tmp_path / "keys", tmp_path / "spans"
    keys.write_text("bob:sk-old\n")
    flags = ("--port", "0", "--tokenizer", fake.address, "--api-keys", str(keys))
    async with started(*flags, HOSTLESS_TRACE_FILE=str(spans)) as process, aiohttp.ClientSession() as http:
        url = str((await process.logged("serving"))["url"])
        await ready(url, http)
        keys.write_text("bob:sk-new\n")
        process.process.send_signal(signal.SIGHUP)
        await process.logged("SIGHUP: API keys read again")
        headers = {
            "Authorization": "Bearer sk-new",
            "x-request-id": "r-1",
            "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
        }
        async with http.post(f"{url}/v1/chat/completions", json=chat_body(stream=True), headers=headers) as response:
            await response.content.readuntil(b"Hello")
            process.process.send_signal(signal.SIGTERM)
            await process.logged("stopping")
            async with http.get(f"{url}/ready") as refusal:
                assert refusal.status == 503
            fake.hold.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert await process.ended() == 0
    line = await process.logged("request")
    assert (line["request_id"], line["tenant"], line["finish"], line["tokens"]) == ("r-1", "bob", "stop", 2)
    by_name = {span["name"]: span for span in map(json.loads, spans.read_text().splitlines())}
    root, queue = by_name["chat.completions"], by_name["queue"]
    assert root["context"]["trace_id"] == queue["context"]["trace_id"] == "0x" + "a" * 32
    assert root["parent_id"] == "0x" + "b" * 16
    assert queue["parent_id"] == root["context"]["span_id"]
    assert fake.submits[0].traceparent.split("-")[1:3] == ["a" * 32, root["context"]["span_id"].removeprefix("0x")]


async def test_the_limit_of_open_files_is_raised(fake: FakeTokenizer) -> None:
    """1024, which is usual, are fewer than the connections that may run and wait."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        async with started("--port", "0", "--tokenizer", fake.address) as process:
            await process.logged("serving")
            assert resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_taken_port_is_named_and_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with started("--port", str(port)) as process:
            assert await process.ended() == 2
    assert f"127.0.0.1:{port}" in str(process.lines[-1]["message"])


async def test_wrong_settings_are_named_and_code_2(tmp_path: Path) -> None:
    async with started("--api-keys", str(tmp_path / "none"), "--port", "0") as process:
        assert await process.ended() == 2
    assert str(tmp_path / "none") in str(process.lines[-1]["message"])
    async with started("--max-choices", "600") as process:
        assert await process.ended() == 2
    assert "max-choices" in str(process.lines[-1]["message"])
