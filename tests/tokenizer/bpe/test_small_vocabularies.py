"""Merging as it is defined, for vocabularies of any shape and pieces of any length."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.tokenizer._bpe import Pattern
from services.tokenizer.bpe_encoder import BpeEncoder
from services.tokenizer.bpe_recipe import BpeRecipe
from tests.tokenizer.bpe import small
from tests.tokenizer.bpe.reference import merged
from tests.tokenizer.examples import examples

any_shape = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
ALPHABETS = ["ab", "abc", "aé中", "中文字", "aя\U00020000", "éèê", "cañ한"]
SPACED = ["a b", "ab ", " 中文", "a\U0001f600 b"]


def texts(alphabet: str) -> st.SearchStrategy[str]:
    few = st.text(alphabet, min_size=1, max_size=6)
    repeated = st.tuples(few, st.integers(1, 60)).map(lambda pair: pair[0] * pair[1])
    runs = st.lists(repeated, min_size=2, max_size=4).map("".join)
    return st.one_of(st.text(alphabet, max_size=40), st.text(alphabet, min_size=60, max_size=300), repeated, runs)


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_byte_level(alphabet: str) -> None:
    @any_shape
    @given(small.byte_level(alphabet), st.lists(texts(alphabet), min_size=1, max_size=6))
    def check(vocabulary: small.Small, samples: list[str]) -> None:
        encoder = BpeEncoder(vocabulary.recipe)
        for text in samples:
            vocabulary.check(encoder, text)

    check()


@pytest.mark.parametrize("alphabet", SPACED)
def test_sentencepiece(alphabet: str) -> None:
    @any_shape
    @given(small.sentencepiece(alphabet), st.lists(texts(alphabet), min_size=1, max_size=6))
    def check(vocabulary: small.Small, samples: list[str]) -> None:
        encoder = BpeEncoder(vocabulary.recipe)
        for text in samples:
            vocabulary.check(encoder, text)

    check()


@pytest.mark.parametrize("alphabet", ["ab", "aé中", "中文字"])
def test_of_equal_ranks_the_leftmost_is_first(alphabet: str) -> None:
    @any_shape
    @given(small.byte_level(alphabet), st.lists(texts(alphabet), min_size=1, max_size=6), st.data())
    def check(vocabulary: small.Small, samples: list[str], data: st.DataObject) -> None:
        recipe = vocabulary.recipe
        ranks = [data.draw(st.integers(0, 4)) for _ in recipe.merges]
        encoder = BpeEncoder(dataclasses.replace(recipe, ranks=ranks, ignore_merges=False))
        by_pair = {(left, right): rank for (left, right), rank in zip(recipe.merges, ranks, strict=True)}
        for text in samples:
            known = [letter for letter in small.as_letters(text) if letter in recipe.vocabulary]
            expected = [recipe.vocabulary[token] for token in merged(known, by_pair)]
            assert encoder.encode(text, add_special=False).tolist() == expected

    check()


def test_a_later_merge_of_the_same_pair_counts() -> None:
    merges = [("a", "b"), ("b", "c"), ("a", "b")]
    vocabulary = {text: i for i, text in enumerate([*small.LETTERS, "ab", "bc"])}
    encoder = BpeEncoder(BpeRecipe(vocabulary, merges, (), Pattern.GPT2))
    assert encoder.encode("abc", add_special=False).tolist() == [vocabulary["a"], vocabulary["bc"]]
