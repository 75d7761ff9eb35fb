"""However a text is cut, a parser gives what the reference reads in the whole of it."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostless.v1 import frontend_pb2 as pb
from services.gateway.tool_calls.formats import PARSERS
from services.gateway.tool_calls.pieces import Arguments, CallBegins
from tests.gateway.tool_calls import reference
from tests.gateway.tool_calls.reference import Read

HERMES, LLAMA = pb.TOOL_FORMAT_HERMES, pb.TOOL_FORMAT_LLAMA3_JSON
REFERENCES: dict[int, Callable[[str], Read]] = {HERMES: reference.hermes, LLAMA: reference.llama3_json}


def read(tool_format: int, cuts: Iterable[str]) -> Read:
    """All pieces joined; a call's name comes before its arguments."""
    parser, got = PARSERS[tool_format](), Read()
    for pieces in (*map(parser.push, cuts), parser.finish()):
        for piece in pieces:
            match piece:
                case str(text):
                    got.content += text
                case CallBegins(name):
                    got.calls.append((name, ""))
                case Arguments(text):
                    name, before = got.calls[-1]
                    got.calls[-1] = name, before + text
    return got


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"\\{}[]<>/é\n', max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text('a"{', max_size=2), inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(st.text("xy", min_size=1, max_size=2), values, max_size=3)
indents = st.sampled_from([None, 1])


@st.composite
def objects(draw: st.DrawFn) -> str:
    """Calls as models write them, in any order of keys, some with a mistake."""
    members: list[tuple[str, Any]] = [
        ("name", draw(st.sampled_from(["get", "a.b", 'q"', "", 5]))),
        (draw(st.sampled_from(["arguments", "parameters"])), draw(arguments | values)),
    ]
    members += draw(st.lists(st.sampled_from([("type", "function"), ("id", "1"), ("zzz", 1)]), max_size=2))
    text = json.dumps(dict(draw(st.permutations(members))), indent=draw(indents), ensure_ascii=draw(st.booleans()))
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["", '"', "}", "{", "\\", ",", "</tool_call>"])) + text[at + 1 :]
    return text


fragments = st.one_of(
    objects(),
    st.sampled_from(["<tool_call>", "<tool_call>\n", "\n</tool_call>", "</tool_call>", "<tool_call>", "</tool_"]),
    st.sampled_from(["<", "<tool", "\n", "  ", " " * 70, ";", "; ", "}", "{", "Hello", "é", "<|python_tag|>", '"']),
)
texts = st.lists(fragments, max_size=8).map("".join)
calls = st.lists(
    st.tuples(st.sampled_from(["", "Hi ", "\n"]), st.just("<tool_call>\n"), objects(), st.just("\n</tool_call>")).map(
        "".join
    ),
    max_size=3,
).map("".join)
lists = st.lists(objects(), min_size=1, max_size=3).map("; ".join)


@st.composite
def cut(draw: st.DrawFn) -> list[str]:
    text = draw(texts | calls | lists)
    text = text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text
    if draw(st.integers(0, 3)) == 0:
        return list(text)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=10)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("tool_format", REFERENCES)
@settings(max_examples=400)
@given(cut())
def test_any_cut_gives_what_the_whole_text_holds(tool_format: int, cuts: list[str]) -> None:
    assert read(tool_format, cuts) == REFERENCES[tool_format]("".join(cuts))


def test_every_format_has_a_parser_and_a_reference() -> None:
    assert set(PARSERS) == set(REFERENCES) == set(pb.ToolFormat.values()) - {pb.TOOL_FORMAT_NONE}
