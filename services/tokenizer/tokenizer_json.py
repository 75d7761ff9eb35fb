"""HuggingFace's tokenizer.json read as a BpeRecipe, if it asks for nothing that the native encoder lacks."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

from services.tokenizer._bpe import Pattern
from services.tokenizer.bpe_recipe import AddedToken, BpeRecipe
from services.tokenizer.cut_patterns import DIGITS, GPT2, pattern_of
from services.tokenizer.encoder import UnsupportedTokenizer

Json = dict[str, Any]

_MARK = "\u2581"  # stands for a space in SentencePiece vocabularies
_MARK_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": _MARK}
_PREPEND = {"type": "Prepend", "prepend": _MARK}
_JOIN_BYTES = [
    {"type": "Replace", "pattern": {"String": _MARK}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_FIRST_SPACE_OFF = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
# Cuts at spaces, of which none are left when it runs.
_NO_CUT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def read_recipe(folder: Path) -> BpeRecipe:
    """From tokenizer.json, with tokenizer_config.json and generation_config.json where they exist.

    Raises UnsupportedTokenizer, which names what the native encoder lacks or what the file has in another form.
    """
    tokenizer = read_json(folder / "tokenizer.json")
    try:
        return _with_ends(_recipe(tokenizer), tokenizer, folder)
    except UnsupportedTokenizer:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise UnsupportedTokenizer(f"{folder}/tokenizer.json is not of the form known: {error!r}") from error


def read_json(path: Path) -> Json:
    """A JSON object from a file; empty if the file does not exist. Raises UnsupportedTokenizer for anything else."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnsupportedTokenizer(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedTokenizer(f"{path}: expected a JSON object")
    return value


def _recipe(tokenizer: Json) -> BpeRecipe:
    model = tokenizer["model"]
    if (kind := model.get("type", "BPE")) != "BPE":
        raise UnsupportedTokenizer(f"a model of type {kind!r}; the native encoder does BPE")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise UnsupportedTokenizer(f"BPE with {option}={model[option]!r}")
    if not isinstance(model["vocab"], dict) or not isinstance(model["merges"], list):
        raise UnsupportedTokenizer("a vocab that is no object, or merges that are no list")
    steps = [step for step in _flat(tokenizer.get("pre_tokenizer"), "pretokenizers") if step != _NO_CUT]
    recipe = BpeRecipe(
        vocabulary=model["vocab"],
        merges=model["merges"],
        added=_added(tokenizer.get("added_tokens", []), model["vocab"]),
        pattern=_pattern(steps) if steps else None,
        ignore_merges=bool(model.get("ignore_merges")),
    )
    return _byte_level(recipe, tokenizer) if steps else _sentencepiece(recipe, tokenizer)


def _byte_level(recipe: BpeRecipe, tokenizer: Json) -> BpeRecipe:
    normal = _flat(tokenizer.get("normalizer"), "normalizers")
    if normal not in ([], [{"type": "NFC"}]):
        raise UnsupportedTokenizer(f"normalizer {normal}")
    if [step["type"] for step in _flat(tokenizer.get("decoder"), "decoders")] != ["ByteLevel"]:
        raise UnsupportedTokenizer("the decoder is not byte level")
    model = tokenizer["model"]
    lacking = [letter for letter in pre_tokenizers.ByteLevel.alphabet() if letter not in model["vocab"]]
    if lacking and (model.get("unk_token") or model.get("byte_fallback")):  # without these the byte is left out
        raise UnsupportedTokenizer(f"unk_token or byte_fallback, and no token for the byte {lacking[0]!r}")
    return dataclasses.replace(recipe, composed=bool(normal))


def _sentencepiece(recipe: BpeRecipe, tokenizer: Json) -> BpeRecipe:
    normal = _flat(tokenizer.get("normalizer"), "normalizers")
    if normal not in ([_MARK_SPACES], [_PREPEND, _MARK_SPACES]):
        raise UnsupportedTokenizer(f"no step that cuts, and normalizer {normal}")
    decoding = _flat(tokenizer.get("decoder"), "decoders")
    if decoding not in (_JOIN_BYTES, [*_JOIN_BYTES, _FIRST_SPACE_OFF]):
        raise UnsupportedTokenizer(f"decoder {decoding} of a SentencePiece vocabulary")
    if recipe.ignore_merges or not tokenizer["model"].get("byte_fallback"):
        raise UnsupportedTokenizer("SentencePiece without byte_fallback, or with ignore_merges")
    if any(token.normalized for token in recipe.added):
        raise UnsupportedTokenizer("SentencePiece with added tokens that are normalized")
    return dataclasses.replace(recipe, prepend_space=_PREPEND in normal)


def _flat(step: Json | None, inner: str) -> list[Json]:
    """A step that may be none, or a sequence of steps."""
    if step is None:
        return []
    return [part for each in step[inner] for part in _flat(each, inner)] if step["type"] == "Sequence" else [step]


def _pattern(steps: list[Json]) -> Pattern:
    pattern = pattern_of(tuple(_regexes(steps)))
    if pattern is None:
        raise UnsupportedTokenizer(f"text is cut in a way that no scanner knows: {steps}")
    return pattern


def _regexes(steps: list[Json]) -> Iterator[str]:
    for step in steps:
        match step:
            case {"type": "Digits", "individual_digits": True}:
                yield DIGITS
            # Everything is in some piece, so that keeping only what matches is the same as cutting around it.
            case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}:
                yield regex
            case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Removed", "invert": True}:
                yield regex
            case {"type": "ByteLevel", "add_prefix_space": False} if step is steps[-1]:
                if step.get("use_regex", True):
                    yield GPT2
            case _:
                raise UnsupportedTokenizer(f"text is cut by {step}")
    if steps[-1]["type"] != "ByteLevel":
        raise UnsupportedTokenizer("text is cut, but not byte level")


def _added(listed: list[Json], vocabulary: dict[str, int]) -> tuple[AddedToken, ...]:
    """Raises UnsupportedTokenizer where `tokenizers` would give a token another id than the file says."""
    found: dict[str, AddedToken] = {}
    following = len(vocabulary)
    for token in listed:
        text, identity = token["content"], token["id"]
        expected = vocabulary.get(text, following)
        if identity != expected or text in found or not text or token.get("single_word"):
            raise UnsupportedTokenizer(f"added token {token}")
        if text not in vocabulary:
            following += 1
        found[text] = AddedToken(
            text, identity, token["special"], token["normalized"], token["lstrip"], token["rstrip"]
        )
    if any(t.swallows_right for t in found.values()) and any(t[0].isspace() for t in found):
        raise UnsupportedTokenizer("added tokens that swallow white space, and others that begin with some")
    return tuple(found.values())


def _with_ends(recipe: BpeRecipe, tokenizer: Json, folder: Path) -> BpeRecipe:
    config, generation = read_json(folder / "tokenizer_config.json"), read_json(folder / "generation_config.json")
    ids = {token.text: token.id for token in recipe.added}

    def named(key: str) -> int | None:
        token = config.get(key)  # its text, or an object that holds it
        text = token.get("content") if isinstance(token, dict) else token
        return ids.get(text or "", recipe.vocabulary.get(text or ""))

    listed = generation.get("eos_token_id") or []
    eos = [named("eos_token"), *(listed if isinstance(listed, list) else [listed])]
    bos = named("bos_token")
    return dataclasses.replace(
        recipe,
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(i for i in eos if i is not None)),
        add_bos=bos is not None and _first_id(tokenizer.get("post_processor")) == bos,
    )


def _first_id(processor: Json | None) -> int | None:
    """The token that is put in front of every text."""
    for step in _flat(processor, "processors"):
        match step:
            case {"type": "ByteLevel"}:
                continue
            case {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": name}}, *_],
                "special_tokens": known,
            }:
                return int(known[name]["ids"][0])
            case {"type": "TemplateProcessing"}:
                return None
            case _:
                raise UnsupportedTokenizer(f"post-processor {step['type']!r}")
    return None
