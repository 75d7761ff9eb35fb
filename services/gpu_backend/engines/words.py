"""Which token ids read as words, taken from a model folder's vocabulary, for the synthetic engine."""

import json
from collections.abc import Mapping
from pathlib import Path

from services.gpu_backend.models.config import ModelError
from services.gpu_backend.models.gguf_header import read_header

_SPACES = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write a leading space


def vocabulary(folder: Path) -> dict[str, int]:
    """Token -> id, from tokenizer.json or else the folder's GGUF. Raises ModelError if it has neither."""
    file = folder / "tokenizer.json"
    if file.exists():
        vocab = json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"]
        return dict(vocab) if isinstance(vocab, Mapping) else {piece: i for i, (piece, _) in enumerate(vocab)}
    for gguf in sorted(folder.glob("*.gguf")):
        tokens = read_header(gguf).metadata.get("tokenizer.ggml.tokens")
        if tokens:
            return {token: i for i, token in enumerate(tokens)}
    raise ModelError(f"{folder}: has neither a tokenizer.json nor a GGUF file with a vocabulary")


def word_ids(vocab: Mapping[str, int], count: int) -> tuple[int, ...]:
    """The first `count` ids whose token is a space and two or more plain lower-case letters."""
    words = (
        token_id
        for token, token_id in sorted(vocab.items(), key=lambda item: item[1])
        if token[:1] in _SPACES and len(token) > 2 and token[1:].isascii() and token[1:].islower()
        and token[1:].isalpha()
    )  # fmt: skip
    return tuple(token_id for _, token_id in zip(range(count), words, strict=False))
