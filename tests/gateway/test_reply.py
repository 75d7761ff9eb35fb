"""Merging of deltas: whatever the reader's pace, it gets every character once, in order."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from hostless.v1 import frontend_pb2 as pb
from services.gateway.metrics import ModelMetrics, TokenClock
from services.gateway.reply import MAX_PARTS, Reply

texts = st.lists(st.tuples(st.integers(0, 2), st.text(max_size=4), st.booleans()), max_size=40)


@given(texts)
def test_any_pace(steps: list[tuple[int, str, bool]]) -> None:
    asyncio.run(any_pace(steps))


async def any_pace(steps: list[tuple[int, str, bool]]) -> None:
    reply = Reply([TokenClock(ModelMetrics(), 0.0) for _ in range(3)])
    sent, got = [""] * 3, [""] * 3
    for index, text, read in steps:
        reply.choices[index].deliver(pb.Delta(text=text, tokens=1), 1.0)
        sent[index] += text
        if read:
            news = reply.take_news()
            assert len({choice.index for choice in news}) == len(news)
            for choice in news:
                got[choice.index] += choice.take()
            assert got == sent
    for choice in reply.choices:
        choice.deliver(pb.Delta(finish=pb.FINISH_STOP), 2.0)
        assert choice.finish == "stop"
    assert {choice.index for choice in reply.take_news()} == {0, 1, 2}
    assert [text + choice.take() for text, choice in zip(got, reply.choices, strict=True)] == sent
    assert not reply.open


async def test_memory_of_an_unread_choice_is_its_text() -> None:
    choice = Reply([TokenClock(ModelMetrics(), 0.0)]).choices[0]
    for _ in range(10 * MAX_PARTS):
        choice.deliver(pb.Delta(text="xy"), 0.0)
    assert len(choice._parts) <= MAX_PARTS + 1
    assert choice.take() == "xy" * 10 * MAX_PARTS
    assert choice.take() == ""


async def test_only_ends_wakes_for_ends_alone() -> None:
    reply = Reply([TokenClock(ModelMetrics(), 0.0)], only_ends=True)
    reply.choices[0].deliver(pb.Delta(text="x", tokens=1), 0.0)
    assert reply.take_news() == []
    reply.choices[0].deliver(pb.Delta(text="y", finish=pb.FINISH_LENGTH), 0.0)
    await reply.ended()
    assert reply.choices[0].take() == "xy"


async def test_times_of_tokens() -> None:
    metrics = ModelMetrics()
    clock = TokenClock(metrics, arrived=10.0)
    clock.tokens(1, 10.5)
    clock.tokens(2, 11.5)
    clock.tokens(1, 12.0)
    clock.end()
    assert (metrics.first_token.total, metrics.second_token.total) == (0.5, 1.5)
    assert sum(metrics.between_tokens.counts) == 3
    assert metrics.between_tokens.total == 1.5
    assert metrics.per_output_token.total == 0.5
    both = TokenClock(metrics, arrived=0.0)
    both.tokens(2, 3.0)
    assert (metrics.first_token.total, metrics.second_token.total) == (3.5, 4.5)


def test_histogram_is_cumulative() -> None:
    histogram = ModelMetrics().queue
    histogram.observe(0.001)
    histogram.observe(0.002, times=3)
    histogram.observe(1e9)
    rows = dict(histogram.cumulative())
    assert (rows["0.001"], rows["0.01"], rows["960.0"], rows["+Inf"]) == (1, 4, 4, 5)
