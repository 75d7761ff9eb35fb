"""Fixtures of the command line's tests: a place of one's own for files, and a fake OpenAI server."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here reads or writes the user's files or settings."""
    for variable, folder in (("HOSTLESS_MODELS", "models"), ("HOSTLESS_RUN", "run"), ("HOSTLESS_STORE", "store")):
        monkeypatch.setenv(variable, str(tmp_path / folder))
    for variable in ("HOSTLESS_URL", "HOSTLESS_API_KEY", "HOSTLESS_SCHEDULER"):
        monkeypatch.delenv(variable, raising=False)


@dataclass
class FakeOpenAi:
    """Answers chats with `pieces` and records the bodies asked; `reply` may replace the whole answer."""

    url: str = ""
    pieces: list[str] = field(default_factory=lambda: ["Hel", "lo", "!"])
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    reply: Callable[[dict[str, Any]], tuple[int, bytes]] | None = None
    pages: dict[str, bytes] = field(default_factory=lambda: {"/v1/models": b'{"data": [{"id": "tiny"}]}'})

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if self.reply:
            return self.reply(body)
        chat = "chat" in path
        choices = [{"delta": {"content": p}} if chat else {"text": p} for p in self.pieces]
        events = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}] if chat else []
        events += [{"choices": [choice]} for choice in choices]
        events.append({"choices": [{"delta": {}, "text": "", "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 7, "completion_tokens": len(self.pieces), "prompt_tokens_details": {}}
        events.append({"choices": [], "usage": usage})
        return 200, sse(*events, end=True)


def sse(*events: Any, end: bool) -> bytes:
    """Events as the bytes of a stream; `end` adds [DONE]."""
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n" if end else ""]).encode()


@pytest.fixture
def server() -> Iterator[FakeOpenAi]:
    fake = FakeOpenAi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            page = fake.pages.get(self.path)
            self._send(404 if page is None else 200, page or b"no such page")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.bodies.append(body)
            fake.headers.append(dict(self.headers))
            with contextlib.suppress(ConnectionError):  # a client that has left
                self._send(*fake.answer(self.path, body))

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        fake.url = f"http://127.0.0.1:{listening.server_port}"
        yield fake
        listening.shutdown()
        thread.join()
