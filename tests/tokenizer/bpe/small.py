"""Small vocabularies of any shape, with merges in any order: what training would never make, too."""

from dataclasses import dataclass

from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.tokenizer._bpe import Pattern
from services.tokenizer.bpe_encoder import BpeEncoder
from services.tokenizer.bpe_recipe import BpeRecipe
from tests.tokenizer.bpe.reference import merged, ranks

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass(frozen=True)
class Small:
    """Tokens of one vocabulary and what the library and the definition make of a text that is one piece."""

    recipe: BpeRecipe
    library: Tokenizer

    def check(self, encoder: BpeEncoder, text: str) -> None:
        ids = encoder.encode(text, add_special=False).tolist()
        assert ids == self.defined(text)
        assert ids == self.library.encode(text).ids

    def defined(self, text: str) -> list[int]:
        vocabulary, merges = self.recipe.vocabulary, ranks((left, right) for left, right in self.recipe.merges)
        if self.recipe.pattern is None:
            symbols = [part for letter in text.replace(" ", "▁") for part in _letter_or_bytes(letter, vocabulary)]
        else:
            symbols = list(as_letters(text))
            if self.recipe.ignore_merges and "".join(symbols) in vocabulary:
                return [vocabulary["".join(symbols)]]
            symbols = [symbol for symbol in symbols if symbol in vocabulary]
        return [vocabulary[token] for token in merged(symbols, merges)]


def as_letters(text: str) -> str:
    """A text as byte-level vocabularies write it."""
    return "".join(part for part, _ in pre_tokenizers.ByteLevel(False, False, False).pre_tokenize_str(text))


def _letter_or_bytes(letter: str, vocabulary: dict[str, int]) -> list[str]:
    return [letter] if letter in vocabulary else [BYTES[byte] for byte in letter.encode()]


@st.composite
def merge_lists(draw: st.DrawFn, symbols: list[str]) -> list[tuple[str, str]]:
    """Of any two symbols or earlier results; maybe in another order, maybe with a pair twice."""
    tokens, merges = list(symbols), list[tuple[str, str]]()
    for _ in range(draw(st.integers(0, 25))):
        pair = (draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens)))
        if len("".join(pair)) <= 40:
            merges.append(pair)
            tokens.append("".join(pair))
    if draw(st.booleans()):
        merges = draw(st.permutations(merges))
    return merges


def _vocabulary(symbols: list[str], merges: list[tuple[str, str]]) -> dict[str, int]:
    return {text: i for i, text in enumerate(dict.fromkeys([*symbols, *map("".join, merges)]))}


@st.composite
def byte_level(draw: st.DrawFn, alphabet: str) -> Small:
    """Byte level; texts of letters are one piece. Some bytes may have no token."""
    used = sorted(set(as_letters(alphabet)))
    lacking = set(draw(st.lists(st.sampled_from(used), max_size=2))) if draw(st.booleans()) else set[str]()
    merges = draw(merge_lists([letter for letter in used if letter not in lacking] or ["!"]))
    vocabulary = _vocabulary([letter for letter in LETTERS if letter not in lacking], merges)
    ignore = draw(st.booleans())
    if ignore:  # tokens that no merge makes, but whole pieces can be
        for text in draw(st.lists(st.text(alphabet, min_size=2, max_size=8), max_size=4)):
            vocabulary.setdefault(as_letters(text), len(vocabulary))
    library = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.decoder = decoders.ByteLevel()
    return Small(BpeRecipe(vocabulary, merges, (), Pattern.GPT2, ignore_merges=ignore), library)


@st.composite
def sentencepiece(draw: st.DrawFn, alphabet: str) -> Small:
    """Characters, of which some have no token but those of their bytes."""
    known = [letter for letter in alphabet.replace(" ", "▁") if letter == "▁" or draw(st.integers(0, 3))]
    merges = draw(merge_lists(known))
    vocabulary = _vocabulary(["<unk>", *BYTES, *known], merges)
    library = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer = normalizers.Replace(" ", "▁")
    return Small(BpeRecipe(vocabulary, merges, (), None), library)
