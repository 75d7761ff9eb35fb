"""Vocabularies as training makes them of Chinese: characters first, then words; some tokens end within a character."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from services.tokenizer._bpe import Pattern
from services.tokenizer.bpe_encoder import BpeEncoder
from services.tokenizer.bpe_recipe import BpeRecipe
from tests.tokenizer.bpe import small
from tests.tokenizer.examples import examples

LETTERS = "中文字汉语aé\U00020000"
TEXTS = st.lists(st.text(LETTERS, min_size=1, max_size=30), min_size=1, max_size=6)


@st.composite
def characters_first(draw: st.DrawFn) -> small.Small:
    merges = list[tuple[str, str]]()
    tokens = set(small.as_letters(LETTERS))
    for character in draw(st.permutations([letter for letter in LETTERS if draw(st.integers(0, 4))])):
        symbols = list(small.as_letters(character))
        while len(symbols) > 1:
            at = draw(st.integers(0, len(symbols) - 2))
            merges.append((symbols[at], symbols[at + 1]))
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            tokens.add(symbols[at])
    for _ in range(draw(st.integers(0, 25))):
        pair = (draw(st.sampled_from(sorted(tokens))), draw(st.sampled_from(sorted(tokens))))
        if len("".join(pair)) <= 30:
            merges.append(pair)
            tokens.add("".join(pair))
    vocabulary = small._vocabulary(small.LETTERS, merges)
    library = Tokenizer(models.BPE(vocabulary, merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.decoder = decoders.ByteLevel()
    return small.Small(BpeRecipe(vocabulary, merges, (), Pattern.GPT2), library)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(characters_first(), TEXTS)
def test_merging_from_characters_on_is_merging(vocabulary: small.Small, samples: list[str]) -> None:
    encoder = BpeEncoder(vocabulary.recipe)
    for text in samples:
        vocabulary.check(encoder, text)
