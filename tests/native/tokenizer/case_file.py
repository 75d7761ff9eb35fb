"""Writes vocabularies and texts with the reference's ids for the native test programs (case_file.hpp reads them)."""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from services.tokenizer._bpe import Pattern
from services.tokenizer.bpe_recipe import AddedToken, BpeRecipe

_PATTERNS = (Pattern.GPT2, Pattern.SMOLLM, Pattern.CL100K, Pattern.QWEN2, Pattern.O200K, Pattern.DEEPSEEK3)
"""In the order of scan::Pattern."""


def write(path: Path, recipe: BpeRecipe, samples: Iterable[tuple[str, Sequence[int]]]) -> None:
    given = list(samples)
    parts = [
        _number(0xFFFFFFFF if recipe.pattern is None else _PATTERNS.index(recipe.pattern)),
        *map(_number, (recipe.ignore_merges, recipe.prepend_space, recipe.composed)),
        _number(len(recipe.vocabulary)),
        *(_text(text) + _number(token_id) for text, token_id in recipe.vocabulary.items()),
        _number(len(recipe.merges)),
    ]
    for merge in recipe.merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        parts.append(_text(left) + _text(right))
    for normalized in (False, True):
        parts += _added([token for token in recipe.added if token.normalized == normalized])
    parts.append(_number(len(given)))
    for text, ids in given:
        parts.append(_text(text) + _number(len(ids)) + struct.pack(f"<{len(ids)}I", *ids))
    path.write_bytes(b"".join(parts))


def expected(tokenizer: Tokenizer, texts: Iterable[str]) -> list[tuple[str, list[int]]]:
    """Texts and the library's ids, control tokens' text being text."""
    tokenizer.encode_special_tokens = True
    return [(text, tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]


def _added(tokens: list[AddedToken]) -> list[bytes]:
    flags = (token.special | token.swallows_left << 1 | token.swallows_right << 2 for token in tokens)
    each = (_text(t.text) + _number(t.id) + _number(f) for t, f in zip(tokens, flags, strict=True))
    return [_number(len(tokens)), *each]


def _number(value: int) -> bytes:
    return struct.pack("<I", value)


def _text(text: str) -> bytes:
    data = text.encode()
    return _number(len(data)) + data
