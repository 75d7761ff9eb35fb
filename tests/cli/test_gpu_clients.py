"""The clients of bench.gpu_gateway, against a fake server."""

import asyncio
import math

import pytest

from bench.gpu.clients import FEWEST, PROMPTS, Lengths, Request, requests, run, saturated
from services.cli.load.connection import Target
from tests.cli.conftest import FakeOpenAi

ASKED = [Request(0.0, [101, 102, 103], 4), Request(0.01, [104], 4)]


@pytest.mark.parametrize("lengths", [PROMPTS, Lengths(463, 0.8, 1024), Lengths(64, 0.8, 128)])
def test_cut_lengths_have_the_mean(lengths: Lengths) -> None:
    asked = list(requests(4.0, 4000, lengths, 200)) if lengths is not PROMPTS else []
    drawn = [each.answer for each in asked] or [len(each.prompt) for each in requests(0.0, 2000, lengths, 200)]
    assert FEWEST <= min(drawn) <= max(drawn) <= lengths.most
    assert math.isclose(sum(drawn) / len(drawn), lengths.mean, rel_tol=0.08)


def test_the_same_is_asked_each_time() -> None:
    assert list(requests(8.0, 9, PROMPTS, 900)) == list(requests(8.0, 9, PROMPTS, 900))
    assert [each.at_s for each in requests(0.0, 3, PROMPTS, 900)] == [0.0] * 3


def test_tokens_without_text_are_stamped_too(server: FakeOpenAi) -> None:
    server.pieces = ["a", "", "", "b"]
    timelines = asyncio.run(run(Target(server.url + "/v1/completions"), "tiny", ASKED))
    assert [(each.error, len(each.stamps), each.completion_tokens) for each in timelines] == [("", 5, 4)] * 2
    assert [body["prompt"] for body in sorted(server.bodies, key=lambda body: body["prompt"])] == [
        [101, 102, 103],
        [104],
    ]


@pytest.mark.parametrize(
    "reply",
    [
        (400, b'{"error": {"message": "no such model"}}'),
        (200, b'data: {"choices": [{"text": "a"}]}\n\n'),
        (200, b'data: {"choices": [{"text": "a"}]}\n\ndata: {"error": {"message": "lost"}}\n\n'),
    ],
)
def test_what_is_no_whole_answer_is_an_error(server: FakeOpenAi, reply: tuple[int, bytes]) -> None:
    server.reply = lambda _: reply
    [timeline, _] = asyncio.run(run(Target(server.url + "/v1/completions"), "tiny", ASKED))
    assert timeline.error.startswith(str(reply[0]))
    assert saturated([timeline]) == 0.0
