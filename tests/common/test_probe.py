"""The container health probe says what is wrong and exits by it."""

import asyncio
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from services.common import probe, rpc


async def run(target: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.common.probe", target, stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, stderr.decode()


async def test_follows_the_health_service() -> None:
    async with rpc.serve("127.0.0.1:0", lambda server: None, []) as server:
        assert (await run(f"127.0.0.1:{server.port}"))[0] == 0
        await server.set_serving(False)
        assert await run(f"127.0.0.1:{server.port}") == (
            1,
            f"127.0.0.1:{server.port}: not ready: it starts, or ends\n",
        )


async def test_nothing_there() -> None:
    for target in ("127.0.0.1:1", "http://127.0.0.1:1/health"):
        assert await run(target) == (1, f"{target}: nothing listens there\n")


async def test_what_is_there_and_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for target in (address, f"http://{address}/ready"):
            assert await probe.ask(target) == "no answer"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"SSH-2.0-x\r\n", "what listens there speaks no HTTP"),
        (b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", "status 503"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 9\r\n\r\n{", "status 503 {"),
    ],
)
async def test_what_is_no_page(said: bytes, why: str) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
        assert await probe.ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/ready") == why


@pytest.mark.parametrize(
    ("body", "why"),
    [(b'{"error": {"message": "no engine is live"}}', "no engine is live"), (b"[]", "status 503 []")],
)
async def test_what_a_page_says(body: bytes, why: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            assert await probe.ask(f"http://127.0.0.1:{server.server_port}/ready") == why
        finally:
            server.shutdown()
            thread.join()
