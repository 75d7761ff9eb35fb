"""The native encoder (B15) behind the interface that the service knows."""

import unicodedata
from collections.abc import Iterable, Sequence

from services.tokenizer import _bpe
from services.tokenizer.bpe_recipe import AddedToken, BpeRecipe
from services.tokenizer.encoder import Encoder, TokenIds, UnsupportedTokenizer, Vocabulary

_COMPOSED_SHRINKS = 3  # to what part NFC may shrink UTF-8: three Hangul letters become one syllable


class BpeEncoder(Encoder):
    """The ids that the tokenizer's own library gives, sooner, and with no allocation but the result's."""

    def __init__(self, recipe: BpeRecipe) -> None:
        """Raises UnsupportedTokenizer for a vocabulary that can't be done exactly."""
        try:
            self._native = _bpe.Encoder(
                vocabulary=recipe.vocabulary,
                merges=list(recipe.merges),
                ranks=None if recipe.ranks is None else list(recipe.ranks),
                raw=_found_as(recipe.added, normalized=False),
                rewritten=_found_as(recipe.added, normalized=True, compose=recipe.composed),
                composed=recipe.composed,
                pattern=recipe.pattern,
                ignore_merges=recipe.ignore_merges,
                prepend_space=recipe.prepend_space,
            )
        except (_bpe.UnsupportedVocabulary, UnicodeEncodeError) as error:
            raise UnsupportedTokenizer(str(error)) from error
        self.vocabulary = _vocabulary(recipe, self._native.texts())

    @property
    def table_bytes(self) -> int:
        """Memory of the native tables."""
        return self._native.table_bytes

    def encode(self, text: str, *, add_special: bool) -> TokenIds:
        return self._native.encode(text, add_special)

    def encode_into(self, text: str, buffer: TokenIds, *, add_special: bool) -> int:
        """Writes the ids of `text` to `buffer`, which is contiguous; returns how many. ValueError: it is too small."""
        return self._native.encode_into(text, buffer, add_special)

    def encode_batch(self, texts: Sequence[str], *, add_special: bool, threads: int) -> list[TokenIds]:
        """Ids of each text, by so many threads that need no interpreter lock."""
        return self._native.encode_batch(list(texts), add_special, threads)


def _found_as(
    tokens: Iterable[AddedToken], *, normalized: bool, compose: bool = False
) -> list[tuple[str, int, bool, bool, bool]]:
    return [
        (
            unicodedata.normalize("NFC", token.text) if compose else token.text,
            token.id,
            token.special,
            token.swallows_left,
            token.swallows_right,
        )
        for token in tokens
        if token.normalized == normalized
    ]


def _vocabulary(recipe: BpeRecipe, texts: list[bytes]) -> Vocabulary:
    control = {token.text: token.id for token in recipe.added if token.special}
    size = max([len(texts), *(token.id + 1 for token in recipe.added)])
    table = [*texts, *[b""] * (size - len(texts))]
    for token in recipe.added:
        if token.special or token.text not in recipe.vocabulary:
            table[token.id] = b"" if token.special else token.text.encode()
    return Vocabulary(
        size=size,
        token_bytes=tuple(table),
        control=control,
        bos_id=recipe.bos_id,
        eos_ids=recipe.eos_ids,
        add_bos=recipe.add_bos,
        longest=_longest(recipe),
    )


def _longest(recipe: BpeRecipe) -> int | None:
    """For Vocabulary.longest: as a file writes a token it is no shorter than in a text."""
    if any(token.swallows_left or token.swallows_right for token in recipe.added):
        return None
    texts = (*recipe.vocabulary, *(token.text for token in recipe.added))
    return max(len(text.encode()) for text in texts) * (_COMPOSED_SHRINKS if recipe.composed else 1)
