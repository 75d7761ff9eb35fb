"""The encoder on HuggingFace `tokenizers`, for byte-level BPE vocabularies."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.tokenizer.encoder import Encoder, TokenIds, UnsupportedTokenizer, Vocabulary
from services.tokenizer.tokenizer_json import read_json

GGUF_CONTROL, GGUF_USER_DEFINED = 3, 4

# How each `tokenizer.ggml.pre` cuts text before BPE, as the models' own tokenizer.json files do.
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {
    "gpt-2": _GPT2,
    "smollm": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "dbrx": _LLAMA3,  # Phi-4
    "qwen2": _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
}
_DIGITS_APART = frozenset({"smollm"})
_COMPOSED = frozenset({"qwen2"})  # text is brought to NFC first
_CUTS = frozenset({"Split", "ByteLevel", "Digits"})
_SHRINKS = {"": 1, "NFC": 3}  # to what part a normalizer may shrink UTF-8: three Hangul letters become one syllable


class HfEncoder(Encoder):
    """Two views of one model: one that knows control tokens in text, one that does not."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._trusting = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True

    def encode(self, text: str, *, add_special: bool) -> TokenIds:
        tokenizer = self._trusting if add_special else self._plain
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.uint32)


def from_gguf(metadata: dict[str, Any]) -> HfEncoder:
    """From a GGUF file's `tokenizer.ggml.*` keys. Raises UnsupportedTokenizer."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in _PATTERNS:
        raise UnsupportedTokenizer(
            f"GGUF tokenizer model={kind!r} pre={pre!r}; supported: gpt2 with pre in {', '.join(sorted(_PATTERNS))}"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [_pair(line) for line in metadata["tokenizer.ggml.merges"]]
    # A merge list that omits pairs whose result is a token itself (Llama 3) is made for whole-word look-up first.
    tokenizer = Tokenizer(
        models.BPE({text: i for i, text in enumerate(tokens)}, merges, ignore_merges=pre in {"llama-bpe", "llama3"})
    )
    cut = pre_tokenizers.Split(Regex(_PATTERNS[pre]), behavior="isolated")
    parts = [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    if pre in _DIGITS_APART:
        parts.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if pre in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        (text, kind) for text, kind in zip(tokens, kinds, strict=True) if kind in (GGUF_CONTROL, GGUF_USER_DEFINED)
    ]
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=k == GGUF_CONTROL) for t, k in added])
    eos = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return HfEncoder(
        tokenizer,
        _vocabulary(
            tokenizer,
            bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
            eos_ids=tuple(dict.fromkeys(i for i in eos if i is not None)),
            add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        ),
    )


def from_folder(folder: Path) -> HfEncoder:
    """From tokenizer.json, with tokenizer_config.json and generation_config.json where they exist.

    Raises UnsupportedTokenizer unless the decoder is byte level.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if '"ByteLevel"' not in json.dumps(json.loads(tokenizer.to_str()).get("decoder")):
        raise UnsupportedTokenizer(f"{folder}/tokenizer.json: the decoder is not byte level")
    config, generation = read_json(folder / "tokenizer_config.json"), read_json(folder / "generation_config.json")
    bos, end = (tokenizer.token_to_id(_content(config.get(key)) or "") for key in ("bos_token", "eos_token"))
    listed = generation.get("eos_token_id") or []
    eos = [end, *(listed if isinstance(listed, list) else [listed])]
    added = tokenizer.encode("", add_special_tokens=True).ids
    return HfEncoder(
        tokenizer,
        _vocabulary(
            tokenizer,
            bos_id=bos,
            eos_ids=tuple(dict.fromkeys(i for i in eos if i is not None)),
            add_bos=bos is not None and added[:1] == [bos],
        ),
    )


def _content(token: Any) -> str | None:
    """A token in tokenizer_config.json is its text, or an object that holds it."""
    return token.get("content") if isinstance(token, dict) else token


def _pair(line: str) -> tuple[str, str]:
    # The separator is the first space that is not the first character: byte-level text holds no space.
    left, _, right = line.partition(" ")
    return left, right


def _vocabulary(tokenizer: Tokenizer, bos_id: int | None, eos_ids: tuple[int, ...], add_bos: bool) -> Vocabulary:
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    control = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}
    table = [b""] * size
    letters = _letters()
    for text, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        table[token_id] = b"" if text in control else _bytes_of(text, letters)
    return Vocabulary(
        size=size,
        token_bytes=tuple(table),
        control=control,
        bos_id=bos_id,
        eos_ids=eos_ids,
        add_bos=add_bos,
        longest=_longest(tokenizer, max(map(len, (*table, *map(str.encode, control))))),
    )


def _longest(tokenizer: Tokenizer, token_bytes: int) -> int | None:
    """For Vocabulary.longest, if the longest token has `token_bytes`: None where a step before BPE may drop text."""
    steps = json.loads(tokenizer.to_str())
    cut = steps["pre_tokenizer"] or {}
    cuts = cut.get("pretokenizers", [cut])
    drops = any(one.get("type") not in _CUTS or one.get("behavior", "Isolated") != "Isolated" for one in cuts)
    swallows = any(token["lstrip"] or token["rstrip"] for token in steps["added_tokens"])
    composed = (steps["normalizer"] or {}).get("type", "")
    if drops or swallows or composed not in _SHRINKS:
        return None
    return token_bytes * _SHRINKS[composed]


def _letters() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable letter: itself, or one from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


def _bytes_of(text: str, letters: dict[str, int]) -> bytes:
    try:
        return bytes([letters[letter] for letter in text])
    except KeyError:  # an added token, written as it is
        return text.encode()
