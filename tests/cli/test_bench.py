"""hostless bench: its requests, its counting, its figures, and the command against a fake server."""

import json
import math
import signal
import subprocess
import sys
import threading
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from services.cli.errors import UsageError
from services.cli.load import driver, workload
from services.cli.load.client import Events, Timeline
from services.cli.load.connection import Target
from services.cli.load.summary import spread, summarize
from services.cli.load.workload import Workload
from services.cli.main import app
from tests.cli.conftest import FakeOpenAi, sse
from tests.waiting import wait_until

texts = st.text(max_size=12) | st.sampled_from(['"text":"x"', '\\"content": "', "data: [DONE]", "\n\n"])


@given(st.lists(texts, max_size=12), st.booleans(), st.data())
def test_events_are_counted_however_the_bytes_are_cut(pieces: list[str], chat: bool, data: st.DataObject) -> None:
    events = [{"choices": [{"delta": {"content": t}} if chat else {"text": t}]} for t in pieces]
    stream = sse(*events, {"choices": [], "usage": {"completion_tokens": 3}}, end=True)
    if data.draw(st.booleans()):
        stream = stream.replace(b"\n", b"\r\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    stamps = array("d")
    counter = Events(stamps)
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        counter.take(stream[begin:end])
    assert len(stamps) == sum(1 for t in pieces if t)
    assert b'"completion_tokens": 3' in counter.ending()
    assert b"[DONE]" in counter.ending()


def test_the_same_seed_asks_the_same() -> None:
    load = Workload("m", requests=20, rate=5, spread=0.8, seed=3)
    assert list(workload.requests(load)) == list(workload.requests(load))
    times = [request.at_s for request in workload.requests(load)]
    assert times == sorted(times)


def test_lengths() -> None:
    same = [json.loads(r.body) for r in workload.requests(Workload("m", requests=3, prompt_tokens=9, output_tokens=4))]
    assert [(len(body["prompt"]), body["max_tokens"]) for body in same] == [(9, 4)] * 3
    spread_out = list(workload.requests(Workload("m", requests=4000, output_tokens=100, spread=0.8)))
    assert math.isclose(sum(r.output_tokens for r in spread_out) / 4000, 100, rel_tol=0.1)


def test_figures() -> None:
    one = Timeline(10.0, array("d", [10.1, 10.2, 10.4]), prompt_tokens=5, completion_tokens=5)
    two = Timeline(10.0, array("d", [10.3, 10.5]), prompt_tokens=5, completion_tokens=2, cached_tokens=4)
    summary = summarize([one, two, Timeline(10.0, error="500: no")])
    assert (summary.requests, summary.failed, summary.errors) == (3, 1, {"500: no": 1})
    assert (summary.prompt_tokens, summary.cached_tokens, summary.completion_tokens) == (10, 4, 7)
    assert summary.seconds == pytest.approx(0.5)
    assert summary.tokens_per_s == pytest.approx(14)
    assert summary.tokens_per_event == pytest.approx(7 / 5)
    assert summary.ttft_ms.mean == pytest.approx(200)
    assert summary.ttst_ms.max == pytest.approx(500)
    assert summary.tpot_ms.max == pytest.approx(200)  # two: one gap, one token after the first
    assert summary.itl_ms.count == 3
    assert summary.slowest_to_fastest == pytest.approx(75 / 200)


def test_goodput() -> None:
    fast = Timeline(10.0, array("d", [10.1, 10.2]), completion_tokens=2)
    slow = Timeline(10.0, array("d", [10.3, 10.5]), completion_tokens=2)
    one = Timeline(10.0, array("d", [10.05]), completion_tokens=1)
    all_of_them = [fast, slow, one, Timeline(10.0, error="500: no")]
    for limits, kept in (
        ({}, 3),
        ({"ttft": 200}, 2),
        ({"ttft": 60}, 1),
        ({"tpot": 150, "e2e": 400}, 2),
        ({"e2e": 1}, 0),
    ):
        assert summarize(all_of_them, limits).good_requests_per_s == pytest.approx(kept / 0.5)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_shared_prefix_is_the_same_for_all_seeds(endpoint: str) -> None:
    prompts = []
    for seed in (1, 2):
        load = Workload("m", endpoint, requests=3, prompt_tokens=5, shared_prefix=7, seed=seed)
        for request in workload.requests(load):
            body = json.loads(request.body)
            prompts.append(body["messages"][0]["content"].split() if endpoint == "chat" else body["prompt"])
    assert {len(prompt) for prompt in prompts} == {12}
    assert len({tuple(prompt[:7]) for prompt in prompts}) == 1
    assert len({tuple(prompt) for prompt in prompts}) == 6


def test_no_figures() -> None:
    summary = summarize([])
    assert summary.tokens_per_s == 0
    assert spread([]).count == 0


async def test_both_loops_use_connections_again(server: FakeOpenAi) -> None:
    for load in (Workload("tiny", requests=12, concurrency=3), Workload("tiny", requests=12, rate=2000.0)):
        seen: list[Timeline] = []
        await driver.run(load, Target(server.url + load.path, "key", 10), seen.append)
        figures = [(t.error, len(t.stamps), t.prompt_tokens, t.completion_tokens) for t in seen]
        assert figures == [("", 3, 7, 3)] * 12
    assert server.headers[0]["Authorization"] == "Bearer key"


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (500, b"broken", "500: broken"),
        (200, sse({"choices": [{"text": "a"}]}, {"error": {"message": "lost"}}, end=False), "lost"),
        (200, sse({"choices": [{"text": "a"}]}, end=False), "the stream was cut"),
        (200, b"", "the stream was cut"),
        (200, sse(end=True), "no text came"),
    ],
)
async def test_failures_are_told_apart(server: FakeOpenAi, status: int, body: bytes, says: str) -> None:
    server.reply = lambda _: (status, body)
    assert says in await error_of_one(server.url + "/v1/completions")


async def test_nobody_there() -> None:
    assert "no connection to 127.0.0.1:9" in await error_of_one("http://127.0.0.1:9/")


async def error_of_one(url: str) -> str:
    seen: list[Timeline] = []
    await driver.run(Workload("m", requests=1), Target(url), seen.append)
    [timeline] = seen
    return timeline.error


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_the_command(server: FakeOpenAi, tmp_path: Path, endpoint: str) -> None:
    file = tmp_path / "figures.json"
    arguments = ["bench", "--url", server.url, "-n", "5", "-c", "2", "--endpoint", endpoint, "--json", str(file)]
    arguments += ["--goodput", "ttft:60000", "--goodput", "e2e:60000"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "5 of 5 requests" in result.stdout
    assert "requests/s within ttft 60000 ms, e2e 60000 ms" in result.stdout
    figures = json.loads(file.read_text())
    assert (figures["requests"], figures["completion_tokens"]) == (5, 15)
    assert len(server.bodies) == 6  # one to warm up


def test_the_command_fails_when_a_request_does(server: FakeOpenAi) -> None:
    server.reply = lambda _: (500, b"broken")
    result = CliRunner().invoke(app, ["bench", "--url", server.url, "-n", "1", "--json", "-"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["errors"] == {"500: broken": 1}
    server.reply = lambda _: (404, b'{"error": {"message": "no such model"}}')
    result = CliRunner().invoke(app, ["bench", "--url", server.url, "-n", "2"])
    assert "2 failed: 404: no such model" in result.stdout
    assert "p99" not in result.stdout


def test_ctrl_c_shows_what_has_come(server: FakeOpenAi, tmp_path: Path) -> None:
    release = threading.Event()
    answer = server.answer("/v1/completions", {})

    def three_then_none(_: object) -> tuple[int, bytes]:
        if len(server.bodies) > 3:
            release.wait(120)
        return answer

    server.reply = three_then_none
    words = ["bench", "--url", server.url, "-n", "9", "-c", "1", "--warmup", "0", "--json", str(tmp_path / "x")]
    command = [sys.executable, "-m", "services.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: len(server.bodies) > 3 or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            release.set()
            process.kill()
    assert process.returncode == 130, err
    assert "3 of 3 requests" in out
    assert json.loads((tmp_path / "x").read_text())["requests"] == 3


@pytest.mark.parametrize(
    "flags",
    [
        *(["--goodput", wrong] for wrong in ("ttft", "ttft:nan", "ttft:0", "ttft:inf", "itl:3")),
        ["--json", "/no/such/folder/x"],
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(server: FakeOpenAi, flags: list[str]) -> None:
    result = CliRunner().invoke(app, ["bench", "--url", server.url, *flags])
    assert isinstance(result.exception, UsageError)
    assert server.bodies == []
