"""Added tokens are found as the library finds them."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken as LibraryToken
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.tokenizer._bpe import Pattern
from services.tokenizer.bpe_encoder import BpeEncoder
from services.tokenizer.bpe_recipe import AddedToken, BpeRecipe
from services.tokenizer.encoder import UnsupportedTokenizer
from tests.tokenizer.bpe.small import LETTERS
from tests.tokenizer.examples import examples

TEXTS = ["<a>", "<a>b", "<", "a>", "<é>", "e\u0301", "<<", "ab", "abab", "[x]", "\u0338", ">\u0338", "中"]
SPACES = [" ", "\n", "\u00a0", "\u3000", "\u2003", "\x85", "\u200b", "\x1c"]
tokens = st.lists(
    st.builds(
        AddedToken,
        text=st.sampled_from(TEXTS),
        id=st.just(0),
        special=st.booleans(),
        normalized=st.booleans(),
        swallows_left=st.booleans(),
        swallows_right=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda token: token.text,
)


def numbered(found: list[AddedToken], vocabulary: dict[str, int]) -> tuple[AddedToken, ...]:
    new = itertools.count(len(vocabulary))
    return tuple(dataclasses.replace(t, id=vocabulary[t.text] if t.text in vocabulary else next(new)) for t in found)


def library(recipe: BpeRecipe, *, plain: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(recipe.vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    if recipe.composed:
        tokenizer.normalizer = normalizers.NFC()
    for t in recipe.added:
        token = LibraryToken(
            t.text, lstrip=t.swallows_left, rstrip=t.swallows_right, normalized=t.normalized, special=t.special
        )
        tokenizer.add_tokens([token])
    tokenizer.encode_special_tokens = plain
    return tokenizer


@pytest.mark.parametrize("composed", [False, True])
def test_found_as_the_library_does(composed: bool) -> None:
    @settings(max_examples=examples(100), deadline=None)
    @given(tokens, st.lists(st.lists(st.sampled_from([*TEXTS, *SPACES]), max_size=12).map("".join), max_size=5))
    def check(found: list[AddedToken], samples: list[str]) -> None:
        vocabulary = {letter: i for i, letter in enumerate(LETTERS)}
        recipe = BpeRecipe(vocabulary, [], numbered(found, vocabulary), Pattern.GPT2, composed=composed)
        encoder = BpeEncoder(recipe)
        for plain in (True, False):
            reference = library(recipe, plain=plain)
            for text in samples:
                ids = encoder.encode(text, add_special=not plain).tolist()
                assert ids == reference.encode(text, add_special_tokens=False).ids

    check()


def test_two_that_are_one_in_nfc_are_refused() -> None:
    vocabulary = {letter: i for i, letter in enumerate(LETTERS)}
    found = numbered([AddedToken(text, 0, False, True) for text in ("<é>", "<e\u0301>")], vocabulary)
    with pytest.raises(UnsupportedTokenizer, match="two added tokens of the text '<é>'"):
        BpeEncoder(BpeRecipe(vocabulary, [], found, Pattern.GPT2, composed=True))
    apart = BpeEncoder(BpeRecipe(vocabulary, [], found, Pattern.GPT2))
    assert apart.encode("<é><e\u0301>", add_special=False).tolist() == [256, 257]


def test_text_of_control_tokens_is_text_unless_asked() -> None:
    recipe = BpeRecipe(
        {letter: i for i, letter in enumerate(LETTERS)}, [], (AddedToken("<s>", 256, True, False),), Pattern.GPT2
    )
    encoder = BpeEncoder(recipe)
    assert encoder.encode("a<s>", add_special=True).tolist()[-1] == 256
    plain = encoder.encode("a<s>", add_special=False)
    assert b"".join(encoder.vocabulary.token_bytes[i] for i in plain) == b"a<s>"
    assert encoder.vocabulary.token_bytes[256] == b""
