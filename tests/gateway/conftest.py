import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from services.common.lifecycle import Lifecycle
from services.gateway.service import Gateway
from services.gateway.settings import GatewaySettings
from tests.gateway.fakes import MODEL, WAIT_S, FakeTokenizer
from tests.waiting import until


@dataclass
class Site:
    """A gateway in this process, its tokenizer, and a client of it."""

    gateway: Gateway
    life: Lifecycle
    task: asyncio.Task[None]
    fake: FakeTokenizer
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    async def get(self, path: str, **more: Any) -> "Answer":
        async with self.http.get(self.url + path, **more) as response:
            return await Answer.of(response)

    async def post(self, path: str, body: Any = None, **more: Any) -> "Answer":
        if body is not None:
            more["json"] = body
        async with self.http.post(self.url + path, **more) as response:
            return await Answer.of(response)

    async def chat(self, **more: Any) -> "Answer":
        return await self.post("/v1/chat/completions", chat_body(**more))

    async def complete(self, prompt: Any = "Once", **more: Any) -> "Answer":
        return await self.post("/v1/completions", {"model": MODEL, "prompt": prompt, **more})

    @asynccontextmanager
    async def open_stream(self, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """A chat's stream, its headers read."""
        async with self.http.post(self.url + "/v1/chat/completions", json=chat_body(stream=True, **more)) as response:
            yield response

    async def metrics(self) -> dict[str, float]:
        text = (await self.get("/metrics")).text
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("hostless:"))
        return {name.removeprefix("hostless:"): float(value) for name, value in rows}

    async def until_metric(self, name: str, value: float) -> None:
        async def is_so() -> bool:
            return (await self.metrics()).get(name) == value

        await until(is_so)

    async def until_ready(self, status: int = 200) -> None:
        async def is_so() -> bool:
            return (await self.get("/ready")).status == status

        await until(is_so)


@dataclass
class Answer:
    status: int
    headers: Any
    text: str
    events: list[Any] = field(default_factory=list)
    """Of a stream: the JSON of each event, "[DONE]" as it is, comments left out."""

    @classmethod
    async def of(cls, response: aiohttp.ClientResponse) -> "Answer":
        text = await response.text()
        events = []
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            events = parse_events(text)
        return cls(response.status, response.headers, text, events)

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        """Of an OpenAI error body, all four fields of which must be there."""
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert set(self.json) == {"error"}
        assert error["message"]
        return error

    def deltas(self, index: int = 0) -> str:
        """The text of one choice, joined."""
        choices = [choice for event in self.events if event != "[DONE]" for choice in event.get("choices", [])]
        mine = [choice for choice in choices if choice["index"] == index]
        return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in mine)

    def finishes(self, index: int = 0) -> list[str]:
        choices = [choice for event in self.events if event != "[DONE]" for choice in event.get("choices", [])]
        return [choice["finish_reason"] for choice in choices if choice["index"] == index and choice["finish_reason"]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway takes who answers late on a busy machine for away: after half a second, and after one."""
    monkeypatch.setattr("services.gateway.endpoints.STATUS_TIMEOUT_S", WAIT_S)
    monkeypatch.setattr("services.gateway.session.DESCRIBE_TIMEOUT_S", WAIT_S)


def parse_events(text: str) -> list[Any]:
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks), blocks
    data = [block.removeprefix("data: ") for block in blocks]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def chat_body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **more}


@asynccontextmanager
async def site_of(fake: FakeTokenizer, *, ready: bool = True, **settings: Any) -> AsyncIterator[Site]:
    """A gateway for a fake, which must be served already if the gateway is to be ready."""
    quick = {"port": 0, "tokenizer": fake.address, "scheduler": "", "grace_s": 0.0}
    gateway, life = Gateway(GatewaySettings(**{**quick, **settings})), Lifecycle()
    task = asyncio.create_task(gateway.run(life))
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as http:
            site = Site(gateway, life, task, fake, http)
            if ready:
                await site.until_ready()
            yield site
    finally:
        life.stopping.set()
        await asyncio.wait_for(task, WAIT_S)


@pytest.fixture
async def fake() -> AsyncIterator[FakeTokenizer]:
    fake = FakeTokenizer()
    async with fake.serve():
        yield fake


@pytest.fixture
async def site(fake: FakeTokenizer) -> AsyncIterator[Site]:
    async with site_of(fake) as site:
        yield site
