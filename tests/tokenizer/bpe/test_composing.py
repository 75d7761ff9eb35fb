"""Texts are brought to NFC as the library does it, and only those that are not in NFC cost anything."""

import unicodedata

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
        self.asked = asked = list[str]()

        def compose(text: str) -> str:
            asked.append(text)
            return str(library(text))

        self._encoder = _bpe.Encoder(
            vocabulary={letter: i for i, letter in enumerate(LETTERS)},
            merges=[],
            raw=[],
            rewritten=[],
            compose=compose,
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


def test_what_is_composed_is_not_composed_again() -> None:
    composer = Composer()
    for text in ("plain", "naïve café", "हिन्दी में", "中文文本", "שָׁלוֹם".replace("\u05c1", ""), "한국어", "👍🏽"):
        assert unicodedata.is_normalized("NFC", text)
        assert composer.composed(text) == text
    assert composer.asked == []
