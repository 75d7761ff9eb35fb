"""What is read from tokenizer.json and GGUF, and what is left to the library or refused, by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.tokenizer import encoders, gguf_recipe, tokenizer_json
from services.tokenizer._bpe import Pattern
from services.tokenizer.bpe_encoder import BpeEncoder
from services.tokenizer.bpe_recipe import BpeRecipe
from services.tokenizer.encoder import UnsupportedTokenizer
from services.tokenizer.hf_encoder import HfEncoder
from tests.tokenizer.bpe.small import BYTES, LETTERS

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
MARK_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
JOIN = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]


def byte_level(**changes: Any) -> dict[str, Any]:
    vocabulary = {letter: i for i, letter in enumerate([*LETTERS, "ab"])}
    model = {"type": "BPE", "vocab": vocabulary, "merges": ["a b"], **changes.pop("model", {})}
    return {"model": model, "pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL, "added_tokens": [], **changes}


def sentencepiece(**changes: Any) -> dict[str, Any]:
    vocabulary = {token: i for i, token in enumerate(["<unk>", *BYTES, "▁", "a", "▁a"])}
    model = {"type": "BPE", "vocab": vocabulary, "merges": ["▁ a"], "byte_fallback": True, "unk_token": "<unk>"}
    model |= changes.pop("model", {})
    return {"model": model, "normalizer": MARK_SPACES, "decoder": {"type": "Sequence", "decoders": JOIN}, **changes}


def added(text: str, identity: int, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("special", "normalized", "lstrip", "rstrip", "single_word"), False)
    return {"content": text, "id": identity, **plain, **flags}


def read(folder: Path, tokenizer: dict[str, Any]) -> BpeRecipe:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return tokenizer_json.read_recipe(folder)


def test_both_kinds_are_encoded(tmp_path: Path) -> None:
    for tokenizer, tokens in ((byte_level(), ["ab"]), (sentencepiece(), ["a", "<0x62>"])):
        recipe = read(tmp_path, tokenizer)
        ids = BpeEncoder(recipe).encode("ab", add_special=False).tolist()
        assert ids == [recipe.vocabulary[token] for token in tokens]


SPLIT = {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated", "invert": False}
REFUSED = {
    "model of type 'Unigram'": byte_level(model={"type": "Unigram"}),
    "dropout=0.1": byte_level(model={"dropout": 0.1}),
    "end_of_word_suffix": byte_level(model={"end_of_word_suffix": "</w>"}),
    "normalizer": byte_level(normalizer={"type": "Lowercase"}),
    "no scanner knows": byte_level(pre_tokenizer={"type": "Sequence", "pretokenizers": [SPLIT, BYTE_LEVEL]}),
    "add_prefix_space": byte_level(pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": True}),
    "decoder is not byte level": byte_level(decoder={"type": "Fuse"}),
    "not byte level": byte_level(pre_tokenizer=SPLIT),
    "'id': 7": byte_level(added_tokens=[added("<x>", 7)]),
    "single_word": byte_level(added_tokens=[added("<x>", 257, single_word=True)]),
    "swallow white space": byte_level(added_tokens=[added("<x>", 257, rstrip=True), added(" y", 258)]),
    "which is no token": byte_level(model={"merges": ["a c"]}),
    "not of two parts": byte_level(model={"merges": ["a b c"]}),
    "no token for the byte": byte_level(model={"vocab": {"a": 0, "b": 1, "ab": 2}, "unk_token": "a"}),
    "two tokens with the id 0": byte_level(model={"vocab": dict.fromkeys(LETTERS, 0)}),
    "too large": byte_level(model={"vocab": {**byte_level()["model"]["vocab"], "x" * 3: 1 << 24}}),
    "control tokens": byte_level(added_tokens=[added("ab", 256, special=True)]),
    "without byte_fallback": sentencepiece(model={"byte_fallback": False}),
    "tokens that are normalized": sentencepiece(added_tokens=[added("<x>", 260, normalized=True)]),
    "and normalizer": sentencepiece(normalizer=None),
    "decoder": sentencepiece(decoder=None),
    "post-processor": byte_level(post_processor={"type": "BertProcessing", "sep": ["a", 0], "cls": ["b", 1]}),
    "not of the form known": {"model": {}},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_can_not_be_done_exactly_is_refused(tmp_path: Path, reason: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "a"}')
    with pytest.raises(UnsupportedTokenizer, match=reason):
        BpeEncoder(read(tmp_path, REFUSED[reason]))


def test_other_ways_of_cutting_are_left_to_the_library(tmp_path: Path) -> None:
    cut = {"type": "Sequence", "pretokenizers": [SPLIT, {**BYTE_LEVEL, "use_regex": False}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level(pre_tokenizer=cut)))
    encoder = encoders.from_folder(tmp_path)
    assert isinstance(encoder, HfEncoder)
    assert encoder.encode("ab", add_special=False).tolist() == [256]


def test_what_neither_does_is_refused(tmp_path: Path, toy_metadata: Any) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(sentencepiece(normalizer=None)))
    with pytest.raises(UnsupportedTokenizer, match="byte level"):
        encoders.from_folder(tmp_path)
    with pytest.raises(UnsupportedTokenizer, match="viking"):
        encoders.from_gguf(toy_metadata(**{"tokenizer.ggml.pre": "viking"}))


def test_gguf(toy_metadata: Any) -> None:
    recipe = gguf_recipe.read_recipe(toy_metadata())
    assert [token.text for token in recipe.added if token.special] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    encoder = encoders.from_gguf(toy_metadata())
    assert isinstance(encoder, BpeEncoder)
    assert (encoder.vocabulary.bos_id, encoder.vocabulary.eos_ids, encoder.vocabulary.add_bos) == (1, (2,), False)


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    encoder = BpeEncoder(BpeRecipe({letter: i for i, letter in enumerate(LETTERS)}, [], (), Pattern.GPT2))
    with pytest.raises(UnicodeEncodeError):
        encoder.encode("a\ud800", add_special=False)
