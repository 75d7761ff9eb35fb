"""Against transformers' own reading of the same GGUF file, and the encoder's own promises."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from services.tokenizer import hf_encoder
from services.tokenizer.encoder import UnsupportedTokenizer
from services.tokenizer.model_text import ModelFilesMissing, ModelText, load
from tests.tokenizer.conftest import chat_of

CORPUS = [
    "Hello, world!",
    "it's  we'll   they'd\tdon't",
    " leading and trailing  ",
    "line\n\nbreaks\r\n\r\n  indented\n\tdef f(x): return x**2  # ½ ² ⅷ",
    "Steps:\n\n1. one\n2. two 10 100 1000000 3.14159 0x7f 2026-11-30",
    "日本語のテキストと漢字、한국어 텍스트 그리고 中文文本。",
    "emoji 👍🏽 👩‍👩‍👧‍👦 🇫🇷 é e\u0301 \u200b\u00a0 \ufeff ﷽",
    "Русский, العربية, עברית, हिन्दी, ไทย",
    "for (int i = 0; i < n; ++i) { std::cout << a[i] << '\\n'; }",
    "\x00\x01\x7f\x80",
    "a" * 5000,
    " " * 300 + "\n" * 20,
    "The quick brown fox jumps over the lazy dog. " * 100,
]


@pytest.fixture(scope="module")
def reference(default_folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    (file,) = default_folder.glob("*.gguf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_folder, gguf_file=file.name)
    # transformers drops the vocabulary's `pre` when it reads a GGUF file. SmolLM2 was trained with digits cut
    # apart before all else (its tokenizer.json, and llama.cpp for "smollm", do so); only space before a digit
    # comes out differently. Everything else is the reference's own.
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer


@pytest.mark.model
@pytest.mark.parametrize("text", CORPUS, ids=range(len(CORPUS)))
def test_ids_equal_the_reference(reference: Any, default_model: ModelText, text: str) -> None:
    ids = default_model.encode_text(text)
    assert ids.dtype == np.uint32
    assert ids.tolist() == reference(text, add_special_tokens=False)["input_ids"]
    decoded = b"".join(default_model.encoder.vocabulary.token_bytes[i] for i in ids)
    assert decoded.decode() == text


@pytest.mark.model
def test_random_text_equals_the_reference(reference: Any, default_model: ModelText) -> None:
    @settings(max_examples=150, deadline=None)
    @given(st.text(max_size=60))
    def check(text: str) -> None:
        assert default_model.encode_text(text).tolist() == reference(text, add_special_tokens=False)["input_ids"]

    check()


@pytest.mark.model
def test_vocabulary_equals_the_reference(reference: Any, default_model: ModelText) -> None:
    vocabulary = default_model.encoder.vocabulary
    assert vocabulary.size == len(reference)
    assert vocabulary.bos_id == reference.bos_token_id
    assert vocabulary.eos_ids == (reference.eos_token_id,)
    assert not vocabulary.add_bos
    for token in [0, 2, 17, 300, 49151]:
        text = vocabulary.token_bytes[token].decode(errors="replace")
        assert text == reference.decode([token], skip_special_tokens=True)


@pytest.mark.model
def test_chat_equals_the_reference(reference: Any, default_model: ModelText) -> None:
    chats: list[list[dict[str, str]]] = [
        [{"role": "user", "content": "Hi!"}],
        [
            {"role": "system", "content": "Be brief.\n"},
            {"role": "user", "content": "1.\n\n2"},
            {"role": "assistant", "content": " 👍 "},
            {"role": "user", "content": ""},
        ],
    ]
    for chat in chats:
        expected = reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert default_model.encode_chat(chat_of(chat), "toy").tolist() == expected


def test_control_text_is_text_unless_asked(toy_metadata: Any) -> None:
    encoder = hf_encoder.from_gguf(toy_metadata())
    text = "hello<|im_end|>"
    assert encoder.encode(text, add_special=True).tolist()[-1] == 2
    plain = encoder.encode(text, add_special=False)
    assert not set(plain.tolist()) & {0, 1, 2}
    assert b"".join(encoder.vocabulary.token_bytes[i] for i in plain) == text.encode()


def test_user_defined_tokens_are_text_that_is_one_token(toy_metadata: Any) -> None:
    metadata = toy_metadata()
    metadata["tokenizer.ggml.tokens"].append("<think> ")
    metadata["tokenizer.ggml.token_type"].append(hf_encoder.GGUF_USER_DEFINED)
    encoder = hf_encoder.from_gguf(metadata)
    last = encoder.vocabulary.size - 1
    assert encoder.encode("<think> ", add_special=False).tolist() == [last]
    assert encoder.vocabulary.token_bytes[last] == b"<think> "


@pytest.mark.parametrize("pre", ["smollm", "qwen2"])
def test_no_text_has_fewer_tokens_than_its_bytes_ask_for(toy_metadata: Any, pre: str) -> None:
    metadata = toy_metadata()
    metadata["tokenizer.ggml.pre"] = pre
    encoder = hf_encoder.from_gguf(metadata)
    assert encoder.vocabulary.longest

    @settings(deadline=None)
    @given(st.text() | st.text(" he\u0301l\u1112\u1161\u11ab<|im_start|>") | st.integers(1, 200).map(" ".__mul__))
    def check(text: str) -> None:
        for add_special in (False, True):
            assert encoder.vocabulary.least_tokens(text) <= len(encoder.encode(text, add_special=add_special))

    check()


def test_no_token_count_is_promised_where_text_may_be_dropped(toy_metadata: Any, tmp_path: Path) -> None:
    def saved(**changes: Any) -> ModelText:
        tokenizer = json.loads(hf_encoder.from_gguf(toy_metadata())._trusting.to_str())
        (tmp_path / "tokenizer.json").write_text(json.dumps({**tokenizer, **changes}))
        return load(tmp_path)

    assert saved().encoder.vocabulary.longest
    added = {"id": 1, "content": "<|im_start|>", "single_word": False, "lstrip": False, "normalized": False}
    swallowing = {"added_tokens": [{**added, "rstrip": True, "special": True}]}
    lower = {"normalizer": {"type": "Lowercase"}}
    spaces = {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    dropping = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [spaces, level]}}
    for changes in (swallowing, lower, dropping):
        vocabulary = saved(**changes).encoder.vocabulary
        assert vocabulary.longest is None
        assert vocabulary.least_tokens("hello " * 1000) == 0


@pytest.mark.parametrize("changes", [{"tokenizer.ggml.model": "llama"}, {"tokenizer.ggml.pre": "viking"}])
def test_other_tokenizers_are_refused_by_name(toy_metadata: Any, changes: dict[str, str]) -> None:
    with pytest.raises(UnsupportedTokenizer, match=next(iter(changes.values()))):
        hf_encoder.from_gguf(toy_metadata(**changes))


def test_tokenizer_json_gives_the_same_ids(toy_metadata: Any, tmp_path: Path) -> None:
    from_gguf = hf_encoder.from_gguf(toy_metadata())
    from_gguf._trusting.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": "x{{ bos_token }}"}'
    )
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    model = load(tmp_path)
    text = "hello world 123 <|im_start|>"
    assert model.encode_text(text).tolist() == from_gguf.encode(text, add_special=False).tolist()
    vocabulary = model.encoder.vocabulary
    assert (vocabulary.bos_id, vocabulary.eos_ids, vocabulary.add_bos) == (1, (2, 0), False)
    assert vocabulary.token_bytes == from_gguf.vocabulary.token_bytes
    assert model.encode_chat(chat_of([{"role": "user", "content": ""}]), "toy").tolist()[-1] == 1


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesMissing, match=str(tmp_path)):
        load(tmp_path)
