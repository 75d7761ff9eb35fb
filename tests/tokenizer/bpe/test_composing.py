"""Texts are brought to NFC as the library does it."""

import unicodedata

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from services.tokenizer import _bpe
from services.tokenizer._bpe import Pattern
from tests.tokenizer.bpe.small import LETTERS
from tests.tokenizer.examples import examples

library = normalizers.NFC().normalize_str
MARKS = [chr(point) for point in range(0x110000) if unicodedata.combining(chr(point))]
BASES = [chr(p) for p in range(0x110000) if unicodedata.normalize("NFD", chr(p)) != chr(p) and not 0xAC00 < p < 0xD7A3]


class Composer:
    """Ids are bytes, so that what was composed can be read from them."""

    def __init__(self) -> None:
        self._encoder = _bpe.Encoder(
            vocabulary={letter: i for i, letter in enumerate(LETTERS)},
            merges=[],
            raw=[],
            rewritten=[],
            composed=True,
            pattern=Pattern.GPT2,
            ignore_merges=False,
            prepend_space=False,
            ranks=None,
        )
        self._texts = self._encoder.texts()

    def composed(self, text: str) -> str:
        ids = self._encoder.encode(text, False)
        return b"".join(self._texts[i] for i in ids).decode()


def test_every_character_by_itself_and_behind_another() -> None:
    composer = Composer()
    letters = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    for start in range(0, len(letters), 4096):
        block = letters[start : start + 4096]
        for text in ("\n".join(block), "\n".join("o\u0323" + letter for letter in block)):
            assert composer.composed(text) == library(text)


def test_any_marks() -> None:
    @settings(max_examples=examples(300), deadline=None)
    @given(
        st.lists(st.sampled_from(MARKS) | st.sampled_from(BASES) | st.sampled_from("aeo각\u1100\u1161"), max_size=20)
    )
    def check(letters: list[str]) -> None:
        text = "".join(letters)
        assert composer.composed(text) == library(text)

    composer = Composer()
    check()


def test_every_pair_that_may_compose() -> None:
    """And each with a mark of the lowest class between them, which is in nobody's way."""
    composer = Composer()
    pairs = [unicodedata.normalize("NFD", whole) for whole in BASES]
    firsts, seconds = sorted({pair[0] for pair in pairs}), sorted({pair[-1] for pair in pairs if len(pair) > 1})
    for second in seconds:
        for between in ("", "\u0334"):
            text = "".join(f"{first}{between}{second}\n" for first in firsts)
            assert composer.composed(text) == library(text)


def test_hangul_in_letters() -> None:
    composer = Composer()
    syllables = "".join(chr(point) for point in range(0xAC00, 0xAC00 + 11172))
    for text in (syllables, library(syllables), unicodedata.normalize("NFD", syllables), "\uac00\u11a7\u11a8\u1161"):
        assert composer.composed(text) == library(text)


def test_as_many_marks_as_there_are_in_any_order() -> None:
    composer = Composer()
    order = np.random.default_rng(6)
    for count in (2, 16, 17, 5000):
        for base in ("", "a", "\u1eaf", "각", "中"):
            text = f"x{base}{''.join(order.permutation(MARKS * 6)[:count])}é"
            assert composer.composed(text) == library(text)


def test_texts_that_are_composed_stay() -> None:
    composer = Composer()
    for text in (
        "plain",
        "naïve café",
        "हिन्दी में पढ़ने",
        "আমি বাংলায়",
        "தமிழ்க்கொடி",
        "中文文本",
        "한국어",
        "👍🏽",
        "",
        "\u0301",
    ):
        assert composer.composed(text) == text == library(text)
