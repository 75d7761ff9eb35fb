"""The encoder of a model: the native one, or the library's where a tokenizer asks for what that one lacks."""

import logging
from pathlib import Path
from typing import Any

from services.tokenizer import gguf_recipe, hf_encoder, tokenizer_json
from services.tokenizer.bpe_encoder import BpeEncoder
from services.tokenizer.encoder import Encoder, UnsupportedTokenizer

log = logging.getLogger(__name__)


def from_folder(folder: Path) -> Encoder:
    """From tokenizer.json, with tokenizer_config.json and generation_config.json where they exist.

    Raises UnsupportedTokenizer where neither encoder can do it.
    """
    try:
        return BpeEncoder(tokenizer_json.read_recipe(folder))
    except UnsupportedTokenizer as error:
        _log_fallback(error, str(folder))
    return hf_encoder.from_folder(folder)


def from_gguf(metadata: dict[str, Any]) -> Encoder:
    """From a GGUF file's `tokenizer.ggml.*` keys. Raises UnsupportedTokenizer where neither encoder can do it."""
    try:
        return BpeEncoder(gguf_recipe.read_recipe(metadata))
    except UnsupportedTokenizer as error:
        _log_fallback(error, str(metadata.get("general.name", "GGUF")))
    return hf_encoder.from_gguf(metadata)


def _log_fallback(reason: UnsupportedTokenizer, name: str) -> None:
    log.warning("tokenizing by the library, which is slower", extra={"tokenizer": name, "reason": str(reason)})
