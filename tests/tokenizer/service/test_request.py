"""A request's states: every edge, legal or not; and the deltas that it sends."""

import itertools

import numpy as np
import pytest

from hostless.v1 import frontend_pb2 as pb
from services.tokenizer.detokenize import TokenText
from services.tokenizer.errors import failed
from services.tokenizer.request import TRANSITIONS, IllegalTransition, Request, State
from services.tokenizer.text_stream import TextStream
from services.tokenizer.tool_formats import Opening

TEXT = TokenText([bytes([byte]) for byte in range(256)], 256)

LEGAL = """
queued encoding
queued finished
encoding scheduling
encoding finished
scheduling scheduling
scheduling submitted
scheduling finished
submitted running
submitted scheduling
submitted finished
running scheduling
running finished
"""


class Heard:
    def __init__(self) -> None:
        self.texts: list[tuple[str, int]] = []
        self.last: list[pb.Delta] = []
        self.openings: list[Opening] = []

    def opens(self, id: int, opening: Opening) -> None:
        self.openings.append(opening)

    def text(self, id: int, text: str, tokens: int) -> None:
        self.texts.append((text, tokens))

    def end(self, delta: pb.Delta) -> None:
        self.last.append(delta)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(State, State)))
def test_every_edge(source: State, target: State) -> None:
    request = Request(pb.Submit(), Heard())
    request.state = source
    if f"{source.value} {target.value}" in LEGAL.split("\n"):
        request.advance(target)
        assert request.state is target
    else:
        with pytest.raises(IllegalTransition, match=f"{source.value} -> {target.value}"):
            request.advance(target)


def test_every_state_can_be_finished_from() -> None:
    assert all(State.FINISHED in TRANSITIONS[state] for state in State if state is not State.FINISHED)


def begun(stops: list[str], max_tokens: int = 10, **fields: object) -> tuple[Request, Heard]:
    heard = Heard()
    request = Request(pb.Submit(id=3, stop=stops, **fields), heard)  # type: ignore[arg-type]
    request.state = State.SUBMITTED
    request.begin(np.frombuffer(b"hi", np.uint8).astype(np.uint32), max_tokens, TextStream(TEXT, stops))
    return request, heard


def test_tokens_without_text_are_counted_with_the_next_text() -> None:
    request, heard = begun([])
    request.receive(list("é".encode()[:1]), False)
    request.receive(list("é".encode()[1:]), False)
    request.receive([ord("x"), 0xC3], False)
    request.finish(pb.FINISH_LENGTH)
    assert heard.texts == [("é", 2), ("x", 2)]
    (last,) = heard.last
    assert (last.text, last.tokens, last.finish) == ("�", 0, pb.FINISH_LENGTH)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 4)


def test_tokens_behind_a_stop_string_do_not_count() -> None:
    request, heard = begun(["b"])
    assert request.receive(list(b"abcd"), False)
    (last,) = heard.last
    assert (last.text, last.tokens, last.usage.completion_tokens, last.finish) == ("a", 2, 2, pb.FINISH_STOP)


def test_a_stop_token_behind_a_stop_string_changes_nothing() -> None:
    request, heard = begun(["b"])
    assert request.receive(list(b"ab\x00"), True)
    assert heard.last[0].usage.completion_tokens == 2


def test_nothing_follows_the_last_delta() -> None:
    request, heard = begun([])
    request.receive(list(b"a"), False)
    request.fail(failed("broken"))
    request.finish(pb.FINISH_STOP)
    request.fail(failed("again"))
    (last,) = heard.last
    assert (last.finish, last.error.message, last.error.http_status) == (pb.FINISH_ERROR, "broken", 500)
    assert last.usage.completion_tokens == 1


def test_what_a_stop_string_held_back_is_sent_with_an_error() -> None:
    request, heard = begun(["abc"])
    request.receive(list(b"xab"), False)
    request.fail(failed("broken"))
    assert heard.texts == [("x", 3)]
    assert heard.last[0].text == "ab"
