"""Everything around the completions: models, health, errors, keys, admission."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from services.gateway.body import parse_json
from services.gateway.long_bodies import LONG_BYTES
from tests.gateway.conftest import Site, chat_body, site_of
from tests.gateway.fakes import MODEL, FakeTokenizer, words
from tests.waiting import until


async def test_models(site: Site) -> None:
    model = {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "hostless",
        "max_model_len": 2048,
    }
    assert (await site.get("/v1/models")).json == {"object": "list", "data": [model]}
    assert (await site.get(f"/v1/models/{MODEL}")).json == model
    missing = await site.get("/v1/models/some/other")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    assert MODEL in missing.error["message"]


async def test_health_ready_version(site: Site) -> None:
    assert (await site.get("/health")).status == 200
    assert (await site.get("/version")).json["version"]
    site.fake.ready, site.fake.reason = False, "no live engine"
    answer = await site.get("/ready")
    assert (answer.status, answer.error["message"]) == (503, "no live engine")
    assert (await site.get("/health")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/embeddings", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
    ],
)
async def test_wrong_paths_and_methods(site: Site, method: str, path: str, status: int) -> None:
    async with site.http.request(method, site.url + path) as response:
        body = await response.json()
        assert response.status == status
        assert response.headers["x-request-id"]
        assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_a_long_body_keeps_nobody_waiting(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it takes to read it: others are answered meanwhile."""
    go_on, began = threading.Event(), threading.Event()

    def slow(body: bytes) -> dict[str, Any]:
        if len(body) > LONG_BYTES:
            began.set()
            assert go_on.wait(60)
        return parse_json(body)

    monkeypatch.setattr("services.gateway.completions.parse_json", slow)
    long = asyncio.create_task(site.complete("word " * LONG_BYTES))
    try:
        await until(began.is_set)
        assert (await site.get("/health")).status == 200
        assert (await site.complete()).status == 200
        assert not long.done()
    finally:
        go_on.set()
    assert (await long).status == 200
    assert (await site.complete("word " * LONG_BYTES, n=0)).status == 400


BAD_BODIES: list[tuple[bytes, dict[str, str], int, str]] = [
    (b"", {}, 400, "not JSON"),
    (b"{", {}, 400, "not JSON"),
    (b"[]", {}, 400, "not an array"),
    (b'"x"', {}, 400, "not a string"),
    (b'{"model": "\xff"}', {}, 400, "not UTF-8"),
    (json.dumps(chat_body()).encode("utf-16"), {}, 400, "not UTF-8"),
    (b'{"temperature": NaN}', {}, 400, "NaN"),
    (b'{"temperature": -Infinity}', {}, 400, "-Infinity"),
    (b'{"seed": ' + b"9" * 5000 + b"}", {}, 400, "not JSON that can be read"),
    (b'{"a":' * 100 + b"1" + b"}" * 100, {}, 400, "nested"),
    (b"[" * 100_000, {}, 400, ""),
    (b'{"a":' * 100_000, {}, 400, ""),
    (b"{}", {"Content-Type": "text/plain"}, 415, "application/json"),
    (b"{}", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
    (b"{}", {"Content-Type": "application/json; charset=latin-1"}, 415, "UTF-8"),
    (b"{", {"Content-Type": 'Application/JSON; profile=x; charset="UTF-8"'}, 400, "not JSON"),
    (b"{}", {"Content-Encoding": "gzip"}, 415, "gzip"),
    (b"{}", {}, 400, "missing"),
]


async def test_bad_bodies(fake: FakeTokenizer) -> None:
    async with site_of(fake, max_body_bytes=1 << 20) as site:
        for body, headers, status, message in BAD_BODIES:
            for path in ("/v1/chat/completions", "/v1/completions"):
                send = {"Content-Type": "application/json", **headers}
                answer = await site.post(path, data=body, headers=send)
                assert answer.status == status, (body[:50], answer.text)
                assert message in answer.error["message"], (body[:50], answer.text)
                assert answer.error["type"] == "invalid_request_error"
        assert (await site.chat()).status == 200
        assert (await site.get("/health")).status == 200
        assert len(fake.submits) == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_too_long(fake: FakeTokenizer, chunked: bool) -> None:
    async def pieces() -> Any:
        for _ in range(100):
            yield b" " * 4096

    async with site_of(fake, max_body_bytes=1024) as site:
        data = pieces() if chunked else b" " * 409_600
        answer = await site.post("/v1/chat/completions", data=data, headers={"Content-Type": "application/json"})
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert (await site.chat()).status == 200


async def test_a_body_that_never_ends(fake: FakeTokenizer) -> None:
    async with site_of(fake, body_timeout_s=0.05) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        writer.close()
        await writer.wait_closed()


async def test_request_ids(site: Site) -> None:
    given = await site.post("/v1/chat/completions", chat_body(), headers={"x-request-id": "abc-1.2:3_4"})
    assert given.headers["x-request-id"] == "abc-1.2:3_4"
    odd = await site.post("/v1/chat/completions", chat_body(), headers={"x-request-id": "a b\tc"})
    assert odd.headers["x-request-id"].startswith("req-")
    assert [submit.request_id for submit in site.fake.submits] == ["abc-1.2:3_4", odd.headers["x-request-id"]]


async def test_api_keys(fake: FakeTokenizer, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nalice:sk-alice\nsk-nobody\n")
    async with site_of(fake, api_keys=str(keys)) as site:

        async def ask(key: str | None) -> int:
            headers = {} if key is None else {"Authorization": key}
            answer = await site.post("/v1/chat/completions", chat_body(), headers=headers)
            if answer.status == 401:
                assert answer.error["code"] == "invalid_api_key"
                assert answer.headers["WWW-Authenticate"] == "Bearer"
            return answer.status

        assert await ask("Bearer sk-alice") == 200
        assert await ask("bearer sk-nobody") == 200
        assert [submit.tenant for submit in fake.submits] == ["alice", ""]
        for wrong in (
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer sk-alic",
            "Bearer sk-alicea",
            "Basic sk-alice",
            "sk-alice",
        ):
            assert await ask(wrong) == 401
        assert (await site.get("/v1/models")).status == 401
        assert (await site.get("/v1/nothing")).status == 401
        assert (await site.get("/health")).status == 200
        assert (await site.get("/metrics")).status == 200

        keys.write_text("sk-new\n")
        site.gateway.auth.reload()
        assert await ask("Bearer sk-new") == 200
        assert await ask("Bearer sk-alice") == 401
        keys.write_text("two words\n")
        site.gateway.auth.reload()
        assert await ask("Bearer sk-new") == 200


async def test_a_full_queue_is_429(fake: FakeTokenizer) -> None:
    fake.script = fake.silent
    async with site_of(fake, max_running=2, max_queue=1, max_choices=2) as site:
        running = [asyncio.create_task(site.chat(stream=stream)) for stream in (False, True)]
        await fake.until(lambda: len(fake.submits) == 2)
        queued = asyncio.create_task(site.chat())
        await site.until_metric(f'num_requests_waiting{{model_name="{MODEL}"}}', 1)
        refused = await site.chat(stream=True)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["Retry-After"]) >= 1
        assert len(fake.submits) == 2
        fake.hold.set()
        assert [(await task).status for task in (*running, queued)] == [200] * 3


async def test_waiting_too_long_is_429(fake: FakeTokenizer) -> None:
    fake.script = fake.silent
    async with site_of(fake, max_running=1, max_choices=1, queue_timeout_s=0.05) as site:
        running = asyncio.create_task(site.chat())
        await fake.until(lambda: fake.submits)
        refused = await site.chat()
        assert (refused.status, "0.05 s" in refused.error["message"]) == (429, True)
        fake.hold.set()
        assert (await running).status == 200


async def test_an_unexpected_failure_is_500_and_the_next_request_works(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("services.gateway.exchange.to_submits", lambda *more: 1 / 0)
        answer = await site.chat()
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
    site.fake.script = words("ok")
    assert (await site.chat()).status == 200
