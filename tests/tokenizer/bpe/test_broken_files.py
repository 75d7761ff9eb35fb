"""Files that are broken are refused with a message that says what is wrong, whichever encoder finds it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from services.tokenizer import encoders
from services.tokenizer.encoder import UnsupportedTokenizer
from tests.tokenizer.bpe.small import BYTES
from tests.tokenizer.bpe.test_gguf_sentencepiece import SPECIAL, metadata
from tests.tokenizer.bpe.test_reading import added, byte_level

VOCABULARY = byte_level()["model"]["vocab"]


def with_token(text: str, identity: Any) -> dict[str, Any]:
    return byte_level(model={"vocab": {**VOCABULARY, text: identity}})


def begun_by(ids: list[Any]) -> dict[str, Any]:
    single = [{"SpecialToken": {"id": "a", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": single, "special_tokens": {"a": {"ids": ids}}}
    return byte_level(post_processor=template)


TOKENIZERS = {
    "id can't be -1": with_token("xy", -1),
    "id can't be '7'": with_token("xy", "7"),
    "id can't be 1099511627776": with_token("xy", 1 << 40),
    "id can't be 1.5": with_token("xy", 1.5),
    "id can't be None": with_token("xy", None),
    "surrogates": with_token("\ud800", 257),
    "vocabulary without a token": byte_level(model={"vocab": {}, "merges": []}),
    "no object": byte_level(model={"vocab": ["a"]}),
    "no list": byte_level(model={"merges": None}),
    "merge 1 is not of two parts": byte_level(model={"merges": [1]}),
    "of a merge can't be 1": byte_level(model={"merges": [[1, 2]]}),
    "'c'. is not of two parts": byte_level(model={"merges": [["a", "b", "c"]]}),
    "names '', which is no token": byte_level(model={"merges": [" b"]}),
    "an added token can't be 5": byte_level(added_tokens=[added(5, 257)]),  # type: ignore[arg-type]
    "KeyError.'special'": byte_level(added_tokens=[{"content": "<x>", "id": 257}]),
    "of itself can't be .1": byte_level(added_tokens=[added("<x>", 257, special=[1])]),  # type: ignore[arg-type]
    "added token": byte_level(added_tokens=[added("<x>", "257")]),  # type: ignore[arg-type]
    "KeyError.'model'": {"added_tokens": []},
    "KeyError.'type'": byte_level(pre_tokenizer={}),
    "no attribute 'get'": {"model": None},
    "index out of range": begun_by([]),
    "invalid literal": begun_by(["x"]),
}


@pytest.mark.parametrize("reason", TOKENIZERS)
def test_tokenizer_json(tmp_path: Path, reason: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "a"}')
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZERS[reason]))
    with pytest.raises(UnsupportedTokenizer, match=f"{tmp_path}.*native encoder.*{reason}"):
        encoders.from_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"model": "\xff"}', b"[]", b"[" * 100_000, b"null"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_file_that_holds_no_json_object_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level()))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnsupportedTokenizer, match=str(tmp_path / name)):
        encoders.from_folder(tmp_path)


@pytest.mark.parametrize("ends", ['"a"', '["a"]', "-1", "1.5", '{"a": 1}', "4294967296"])
def test_an_end_token_that_is_no_id(tmp_path: Path, ends: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level()))
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {ends}}}')
    with pytest.raises(UnsupportedTokenizer, match=r"is no id|unhashable"):
        encoders.from_folder(tmp_path)


GGUF: dict[str, dict[str, Any]] = {
    "not of the form known": {"tokens": 5},
    "is longer than": {"tokens": ["a", "b"]},
    "is shorter than": {"token_type": [1]},
    "merge 1 is not of two parts": {"merges": [1]},
    "names 'q": {"merges": ["q<> zz"]},
    "begin token 1099511627776 is not": {"bos_token_id": 1 << 40},
    "begin token -1 is not": {"bos_token_id": -1},
    "begin token 'x' is not": {"bos_token_id": "x"},
    "end token -5 is no id": {"eos_token_id": -5},
    "unhashable": {"pre": [1]},
    "without a token": {"tokens": [], "token_type": [], "merges": []},
}


@pytest.mark.parametrize("reason", GGUF)
def test_gguf(toy_metadata: Any, reason: str) -> None:
    changes = {f"tokenizer.ggml.{key}": value for key, value in GGUF[reason].items()}
    with pytest.raises(UnsupportedTokenizer, match=reason):
        encoders.from_gguf(toy_metadata(**changes))


@pytest.mark.parametrize("key", ["tokens", "token_type", "merges"])
def test_gguf_without_a_key(toy_metadata: Any, key: str) -> None:
    made = toy_metadata()
    del made[f"tokenizer.ggml.{key}"]
    with pytest.raises(UnsupportedTokenizer, match=f"tokenizer.ggml.{key}"):
        encoders.from_gguf(made)


TOKENS = [*SPECIAL, *BYTES, "▁", "a"]


@pytest.mark.parametrize(
    ("reason", "scores"),
    [
        ("no number", [math.nan] * len(TOKENS)),
        ("261 tokens, 1 scores", [0.0]),
        ("261 tokens, 300 scores", [0.0] * 300),
        ("must be real number", ["x"] * len(TOKENS)),
    ],
)
def test_gguf_scores(reason: str, scores: list[Any]) -> None:
    with pytest.raises(UnsupportedTokenizer, match=reason):
        encoders.from_gguf(metadata(TOKENS, scores))


def test_a_vocabulary_of_one_token_and_no_merge(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level(model={"vocab": {"a": 0}, "merges": []})))
    assert encoders.from_folder(tmp_path).encode("banana", add_special=False).tolist() == [0, 0, 0]
