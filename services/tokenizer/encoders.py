"""The encoder of a model: the native one, or the library's where a tokenizer asks for what that one lacks."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.tokenizer import gguf_recipe, hf_encoder, tokenizer_json
from services.tokenizer.bpe_encoder import BpeEncoder
from services.tokenizer.bpe_recipe import BpeRecipe
from services.tokenizer.encoder import Encoder, UnsupportedTokenizer

log = logging.getLogger(__name__)


def from_folder(folder: Path) -> Encoder:
    """From tokenizer.json, with tokenizer_config.json and generation_config.json where they exist.

    Raises UnsupportedTokenizer where neither encoder can do it.
    """
    return _first(str(folder), lambda: tokenizer_json.read_recipe(folder), lambda: hf_encoder.from_folder(folder))


def from_gguf(metadata: dict[str, Any]) -> Encoder:
    """From a GGUF file's `tokenizer.ggml.*` keys. Raises UnsupportedTokenizer where neither encoder can do it."""
    name = str(metadata.get("general.name", "GGUF"))
    return _first(name, lambda: gguf_recipe.read_recipe(metadata), lambda: hf_encoder.from_gguf(metadata))


def _first(name: str, recipe: Callable[[], BpeRecipe], library: Callable[[], Encoder]) -> Encoder:
    try:
        return BpeEncoder(recipe())
    except UnsupportedTokenizer as error:
        reason = error
    try:
        encoder = library()
    except Exception as error:  # the library knows no narrower class for a file that is broken
        why = str(error) if isinstance(error, UnsupportedTokenizer) else repr(error)
        raise UnsupportedTokenizer(f"{name}: {why}; nor by the native encoder: {reason}") from error
    log.warning("tokenizing by the library, which is slower", extra={"tokenizer": name, "reason": str(reason)})
    return encoder
