"""SentencePiece from GGUF, where tokens have scores in place of merges."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer import encoders, gguf_recipe, tokenizer_json
from services.tokenizer.encoder import UnsupportedTokenizer
from tests.tokenizer.bpe import vocabularies
from tests.tokenizer.bpe.small import BYTES
from tests.tokenizer.bpe.texts import CORPUS
from tests.tokenizer.examples import examples

SPECIAL = ["<unk>", "<s>", "</s>"]


def metadata(tokens: list[str], scores: list[float], **changes: Any) -> dict[str, Any]:
    kinds = {"<unk>": gguf_recipe.UNKNOWN, "<s>": gguf_recipe.CONTROL, "</s>": gguf_recipe.CONTROL}
    kinds |= dict.fromkeys(BYTES, 6)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [kinds.get(token, gguf_recipe.NORMAL) for token in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **changes,
    }


def defined(text: str, scores: dict[str, float]) -> list[str]:
    """Highest score first, of equal ones the leftmost."""
    row = [part for letter in text for part in ([letter] if letter in scores else _bytes(letter))]
    while found := [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(row)) if a + b in scores]:
        at = min(found)[1]
        row[at : at + 2] = [row[at] + row[at + 1]]
    return row


def _bytes(letter: str) -> list[str]:
    return [BYTES[byte] for byte in letter.encode()]


def test_the_same_ids_as_from_tokenizer_json() -> None:
    folder = vocabularies.folder("llama2")
    from_json, recipe = encoders.from_folder(folder), tokenizer_json.read_recipe(folder)
    tokens = sorted(recipe.vocabulary, key=recipe.vocabulary.__getitem__)
    scores = dict.fromkeys(tokens, -1e9)
    for rank, merge in reversed(list(enumerate(recipe.merges))):
        scores["".join(merge).replace(" ", "")] = -float(rank)
    from_gguf = encoders.from_gguf(metadata(tokens, list(scores.values())))
    for text in CORPUS.values():
        for add_special in (False, True):
            ids = from_gguf.encode(text, add_special=add_special)
            assert ids.tolist() == from_json.encode(text, add_special=add_special).tolist()
    assert from_gguf.vocabulary.token_bytes == from_json.vocabulary.token_bytes
    assert from_gguf.vocabulary.control == from_json.vocabulary.control
    assert (from_gguf.vocabulary.bos_id, from_gguf.vocabulary.add_bos) == (1, True)


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_equal_scores_go_from_left_to_right(data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.text("▁ab中", min_size=2, max_size=5), max_size=15, unique=True))
    tokens = [*SPECIAL, *BYTES, "▁", "a", "b", *parts]
    scores = [float(data.draw(st.integers(-5, 0))) for _ in tokens]
    encoder = encoders.from_gguf(metadata(tokens, scores, **{"tokenizer.ggml.add_space_prefix": False}))
    text = data.draw(st.text(" ab中", max_size=60) | st.text(" ab中", min_size=1, max_size=4).map(lambda s: s * 30))
    known = {t: s for t, s in zip(tokens, scores, strict=True) if t not in {*SPECIAL, *BYTES}}
    ids = encoder.encode(text, add_special=False).tolist()
    assert ids == [tokens.index(token) for token in defined(text.replace(" ", "▁"), known)]


def test_unused_tokens_are_refused() -> None:
    tokens = [*SPECIAL, *BYTES, "▁", "a", "▁a"]
    made = metadata(tokens, [0.0] * len(tokens))
    made["tokenizer.ggml.token_type"][-1] = gguf_recipe.UNUSED
    with pytest.raises(UnsupportedTokenizer, match="unused"):
        gguf_recipe.read_recipe(made)
