"""The scanners cut where the regexes of the models' own files do, with every instruction set of this machine."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer import _scan
from tests.tokenizer.examples import examples
from tests.tokenizer.scan import reference
from tests.tokenizer.scan.texts import FRAGMENTS, SAMPLES

each_pattern = pytest.mark.parametrize("pattern", _scan.PATTERNS)
STRINGS = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join),
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4).flatmap(
        lambda few: st.lists(st.sampled_from(few), max_size=60).map("".join)
    ),
    st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.integers(1, 120)), min_size=1, max_size=4).map(
        lambda runs: "".join(fragment * count for fragment, count in runs)
    ),
    st.text(st.characters(codec="utf-8"), max_size=60),
    st.text(st.characters(max_codepoint=0x7F), max_size=150),
)


def pieces(text: str, ends: list[int]) -> list[str]:
    data = text.encode()
    return [data[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]


def check(pattern: str, text: str) -> None:
    expected = pieces(text, reference.ends(pattern, text))
    for instructions in _scan.INSTRUCTION_SETS:
        assert pieces(text, _scan.cut(pattern, text.encode(), instructions)) == expected, instructions


def test_every_pattern_has_a_reference() -> None:
    assert set(_scan.PATTERNS) == set(reference.PRE_TOKENIZERS)


@each_pattern
@pytest.mark.parametrize("sample", SAMPLES)
def test_texts_of_many_kinds(pattern: str, sample: str) -> None:
    check(pattern, SAMPLES[sample])


@each_pattern
@given(text=STRINGS)
@settings(max_examples=examples(250), deadline=None)
def test_any_text(pattern: str, text: str) -> None:
    check(pattern, text)


@each_pattern
@pytest.mark.parametrize("context", ["a{}b !{}", " '{}s 1{}\n", "\u4e2d{}A{}\u0301 {}  "])
def test_every_code_point(pattern: str, context: str) -> None:
    # Of the large blocks of ideographs, syllables and unassigned codes, whose members are all alike, a part.
    alike = [range(0x3500, 0x9F00), range(0xAD00, 0xD700), range(0xE100, 0xF8F0), range(0x17100, 0x18700)]
    alike += [range(0x1FC00, 0x2A600), range(0x2A800, 0xE0000), range(0xE0200, 0x10FF00)]
    codes = [c for c in range(0x110000) if c % 211 == 0 or not any(c in block for block in alike)]
    letters = [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    for i in range(0, len(letters), 4096):
        text = "\n;".join(context.format(*[letter] * 3) for letter in letters[i : i + 4096])
        if reference.ends(pattern, text) != _scan.cut(pattern, text.encode()):
            for letter in letters[i : i + 4096]:
                check(pattern, context.format(*[letter] * 3))
            check(pattern, text)
