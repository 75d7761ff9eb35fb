import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.detokenize import Detokenizer, TokenText

PIECES = [
    b"",
    b"a",
    b" word",
    "é".encode(),
    "語".encode(),
    "👍🏽".encode(),
    *[bytes([byte]) for byte in "👍語é".encode()],
    b"\xff",
    b"\xc0",
    b"\xed\xa0\x80",  # a surrogate, never valid
    b"\xf0\x9f",
    b"\x9f\x91 x",
    b"x\xe8\xaa",
]
TEXT = TokenText(PIECES, len(PIECES) + 3)


def split(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(bounds)]


@given(st.lists(st.integers(0, len(TEXT.bytes) - 1), max_size=40), st.lists(st.integers(0, 40), max_size=10))
def test_joined_deltas_equal_decoding_everything_at_once(ids: list[int], cuts: list[int]) -> None:
    detokenizer = Detokenizer(TEXT)
    deltas = [detokenizer.push(part) for part in split(ids, cuts)]
    joined = "".join([*deltas, detokenizer.finish()])
    assert joined == b"".join(TEXT.bytes[i] for i in ids).decode(errors="replace")


@given(st.binary(max_size=60))
def test_any_bytes_one_at_a_time(data: bytes) -> None:
    detokenizer = Detokenizer(TokenText([bytes([b]) for b in range(256)], 256))
    assert "".join([*(detokenizer.push([b]) for b in data), detokenizer.finish()]) == data.decode(errors="replace")


@given(st.text(max_size=30))
def test_a_valid_text_never_shows_a_broken_character_on_the_way(text: str) -> None:
    detokenizer = Detokenizer(TokenText([bytes([b]) for b in range(256)], 256))
    sent = ""
    for byte in text.encode():
        sent += detokenizer.push([byte])
        assert text.startswith(sent)
    assert sent == text
    assert detokenizer.finish() == ""


def test_state_stays_within_one_open_character() -> None:
    detokenizer = Detokenizer(TEXT)
    for ids in ([PIECES.index(b"\xf0\x9f")] * 50, range(len(PIECES)), [PIECES.index(b"x\xe8\xaa")] * 50):
        for token in ids:
            detokenizer.push([token])
            assert len(detokenizer._held) <= 3


def test_ids_past_the_vocabulary_say_nothing() -> None:
    assert Detokenizer(TEXT).push([len(PIECES), 1, len(PIECES) + 2]) == "a"


@pytest.mark.parametrize("finish_twice", [False, True])
def test_finish_lets_go_of_an_open_character_once(finish_twice: bool) -> None:
    detokenizer = Detokenizer(TEXT)
    assert detokenizer.push([PIECES.index(b"\xf0\x9f")]) == ""
    assert detokenizer.finish() == "�"
    if finish_twice:
        assert detokenizer.finish() == ""
