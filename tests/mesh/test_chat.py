"""The real model through all five services: what a client sees, and that a second turn computes only what is new."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI

from services.cli.mesh.plan import MeshOptions
from tests.mesh.harness import Client, client, mesh

pytestmark = [pytest.mark.model, pytest.mark.slow]  # one mesh with the real model, about 30 s in all

CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    folder = tmp_path_factory.mktemp("mesh")
    spans = {"HOSTLESS_TRACE_FILE": str(folder / "spans")}
    async with mesh(folder, MeshOptions(engine="torch"), **spans) as running, client(running) as c:
        yield c


@pytest.mark.asyncio(loop_scope="module")
async def test_streamed_equals_whole(real: Client) -> None:
    streamed = await real.chat(CAPITAL, temperature=0, max_tokens=40)
    body = {"model": await real.model(), "messages": CAPITAL, "temperature": 0, "max_tokens": 40}
    async with real.session.post(real.mesh.url + "/v1/chat/completions", json=body) as response:
        whole = await response.json()
    assert "Paris" in streamed.text
    assert whole["choices"][0]["message"]["content"] == streamed.text
    assert whole["choices"][0]["finish_reason"] == streamed.finish
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert whole["usage"][key] == (streamed.usage or {})[key]


@pytest.mark.asyncio(loop_scope="module")
async def test_official_client(real: Client) -> None:
    key: Any = {"base_url": real.mesh.url + "/v1", "api_key": "none", "max_retries": 0}
    ask: Any = {"model": await real.model(), "messages": CAPITAL, "temperature": 0, "max_tokens": 16}
    async with AsyncOpenAI(**key) as asynchronous:
        whole = await asynchronous.chat.completions.create(**ask)
        stream = await asynchronous.chat.completions.create(**ask, stream=True)
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert whole.choices[0].message.content == streamed

    def synchronous() -> tuple[str, str]:
        with OpenAI(**key) as plain:
            whole = plain.chat.completions.create(**ask).choices[0].message.content or ""
            chunks = plain.chat.completions.create(**ask, stream=True)
            return whole, "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    assert await asyncio.to_thread(synchronous) == (streamed, streamed)


@pytest.mark.asyncio(loop_scope="module")
async def test_seed_decides_alone(real: Client) -> None:
    """The same seed gives the same text, whoever else is in the batch."""
    ask: dict[str, Any] = {"messages": CAPITAL, "temperature": 1.0, "seed": 7, "max_tokens": 24}
    alone = await real.chat(**ask)
    crowd = await asyncio.gather(
        real.chat(**ask), *(real.chat([{"role": "user", "content": f"Count to {n}"}], max_tokens=24) for n in range(5))
    )
    assert crowd[0].text == alone.text


@pytest.mark.asyncio(loop_scope="module")
async def test_second_turn_loads_the_first(real: Client) -> None:
    story = "Once there was a lighthouse keeper who counted ships. " * 40
    turns = [{"role": "user", "content": story + "What did the keeper count?"}]
    first = await real.chat(turns, temperature=0, max_tokens=30)
    prompt = (first.usage or {})["prompt_tokens"]
    turns += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Say it again."}]

    async def hit() -> bool:
        second = await real.chat(turns, temperature=0, max_tokens=5)
        cached = (second.usage or {})["prompt_tokens_details"]["cached_tokens"]
        assert cached % 64 == 0
        return bool(cached >= prompt // 64 * 64)

    await real.until("the first turn's blocks are stored and hit", hit)

    async def shown() -> bool:  # with the engine's next report
        hits = [value for name, value in (await real.metrics()).items() if name.startswith("prefix_cache_hits_total")]
        return sum(hits) >= prompt // 64 * 64

    await real.until("/metrics shows the hit", shown)


@pytest.mark.asyncio(loop_scope="module")
async def test_one_trace_a_request(real: Client) -> None:
    request = "trace-me-1234567"
    body = {"model": await real.model(), "messages": CAPITAL, "max_tokens": 4}
    url = real.mesh.url + "/v1/chat/completions"
    async with real.session.post(url, json=body, headers={"x-request-id": request}) as response:
        assert response.headers["x-request-id"] == request
        await response.read()
    spans = real.mesh.folder / "spans"

    async def complete() -> bool:
        return {"queue", "tokenize", "schedule", "ring submit", "prefill", "decode"} <= names_of(spans, request)

    await real.until("all spans of the request's trace", complete)


def names_of(spans: Path, request: str) -> set[str]:
    """Names of all spans in the trace whose root carries the request's id."""
    found = [json.loads(line) for line in spans.read_text().splitlines()]
    roots = [s for s in found if request in json.dumps(s.get("attributes", {})) and s["parent_id"] is None]
    traces = {root["context"]["trace_id"] for root in roots}
    assert len(traces) <= 1
    return {span["name"] for span in found if span["context"]["trace_id"] in traces}
