"""The `tokenizer.ggml.*` keys of a GGUF file read as a BpeRecipe."""

import dataclasses
import math
from typing import Any

from services.tokenizer._bpe import Pattern
from services.tokenizer.bpe_recipe import AddedToken, BpeRecipe
from services.tokenizer.encoder import UnsupportedTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # token types

# How each `tokenizer.ggml.pre` cuts text, as the models' own tokenizer.json files do.
_PATTERNS = {
    "gpt-2": Pattern.GPT2,
    "smollm": Pattern.SMOLLM,
    "llama-bpe": Pattern.CL100K,
    "llama3": Pattern.CL100K,
    "dbrx": Pattern.CL100K,  # Phi-4
    "qwen2": Pattern.QWEN2,
    "gpt-4o": Pattern.O200K,
    "deepseek-v3": Pattern.DEEPSEEK3,
}
# A merge list that omits pairs whose result is a token itself is made for whole-word look-up first.
_IGNORE_MERGES = frozenset({"llama-bpe", "llama3"})
_COMPOSED = frozenset({"qwen2"})


def read_recipe(metadata: dict[str, Any]) -> BpeRecipe:
    """Of a byte-level or a SentencePiece vocabulary. Raises UnsupportedTokenizer, also for keys of another form."""
    try:
        return _recipe(metadata)
    except UnsupportedTokenizer:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise UnsupportedTokenizer(f"tokenizer.ggml keys that are not of the form known: {error!r}") from error


def _recipe(metadata: dict[str, Any]) -> BpeRecipe:
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind == "llama":
        return _with_ends(_sentencepiece(metadata), metadata, add_bos=True)
    if kind != "gpt2" or pre not in _PATTERNS:
        raise UnsupportedTokenizer(
            f"GGUF tokenizer model={kind!r} pre={pre!r}; supported: llama, and gpt2 with pre in "
            f"{', '.join(sorted(_PATTERNS))}"
        )
    recipe = BpeRecipe(
        vocabulary=_vocabulary(metadata),
        merges=metadata["tokenizer.ggml.merges"],
        added=_added(metadata, CONTROL),
        pattern=_PATTERNS[pre],
        ignore_merges=pre in _IGNORE_MERGES,
        composed=pre in _COMPOSED,
    )
    return _with_ends(recipe, metadata, add_bos=False)


def _sentencepiece(metadata: dict[str, Any]) -> BpeRecipe:
    """The file has a score for each token instead of merges: any two symbols merge whose texts make a token, the
    highest score first, of equal ones the leftmost."""
    vocabulary = _vocabulary(metadata)
    scores: list[float] = metadata["tokenizer.ggml.scores"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    if not len(scores) == len(kinds) == len(vocabulary):
        raise UnsupportedTokenizer(f"{len(vocabulary)} tokens, {len(scores)} scores and {len(kinds)} token types")
    if any(math.isnan(score) for score in scores):
        raise UnsupportedTokenizer("a score that is no number")
    if UNUSED in kinds:
        raise UnsupportedTokenizer(
            "a SentencePiece vocabulary with unused tokens, which are made and taken apart again"
        )
    rank_of = {score: rank for rank, score in enumerate(sorted(set(scores), reverse=True))}
    merged = {text: i for text, i in vocabulary.items() if kinds[i] == NORMAL}
    merges, ranks = list[tuple[str, str]](), list[int]()
    for text, i in merged.items():
        for cut in range(1, len(text)):
            if text[:cut] in merged and text[cut:] in merged:
                merges.append((text[:cut], text[cut:]))
                ranks.append(rank_of[scores[i]])
    return BpeRecipe(
        vocabulary=vocabulary,
        merges=merges,
        ranks=ranks,
        added=_added(metadata, CONTROL, UNKNOWN),
        pattern=None,
        prepend_space=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
    )


def _vocabulary(metadata: dict[str, Any]) -> dict[str, int]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    vocabulary = {text: i for i, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise UnsupportedTokenizer("a GGUF vocabulary with two tokens of one text")
    return vocabulary


def _added(metadata: dict[str, Any], *control: int) -> tuple[AddedToken, ...]:
    """Of the token types `control`, and those that a user of the vocabulary added."""
    listed = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    return tuple(
        AddedToken(text, i, special=kind != USER_DEFINED, normalized=False)
        for i, (text, kind) in enumerate(listed)
        if kind in (*control, USER_DEFINED)
    )


def _with_ends(recipe: BpeRecipe, metadata: dict[str, Any], *, add_bos: bool) -> BpeRecipe:
    """`add_bos`: where the file doesn't say."""
    eos = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return dataclasses.replace(
        recipe,
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_ids=tuple(dict.fromkeys(i for i in eos if i is not None)),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
    )
