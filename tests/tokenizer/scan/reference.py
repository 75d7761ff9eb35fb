"""How the `tokenizers` library cuts text: by the pre_tokenizer objects of the models' own tokenizer.json files."""

import json
from functools import cache
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

Json = dict[str, Any]

_LAST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CL100K = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_LAST}"
_HEAD, _TAIL = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_HEAD}]*[{_TAIL}]+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_HEAD}]+[{_TAIL}]*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_LAST}"
)
_DEEPSEEK3 = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)


def _split(regex: str, behavior: str = "Isolated", invert: bool = False) -> Json:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def _byte_level(use_regex: bool) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _sequence(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": [*steps, _byte_level(use_regex=False)]}


PRE_TOKENIZERS: dict[str, Json] = {
    "gpt2": _byte_level(use_regex=True),
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)],
    },
    "cl100k": _sequence(_split(_CL100K)),
    "qwen2": _sequence(_split(_CL100K.replace("{1,3}", ""))),
    "o200k": _sequence(_split(_O200K, "Removed", invert=True)),
    "deepseek3": _sequence(
        _split(r"\p{N}{1,3}"), _split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), _split(_DEEPSEEK3)
    ),
}


@cache
def _cutter(pattern: str) -> Any:
    model = {"type": "BPE", "vocab": {}, "merges": []}
    tokenizer = Tokenizer.from_str(
        json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": PRE_TOKENIZERS[pattern], "model": model})
    )
    return tokenizer.pre_tokenizer


def ends(pattern: str, text: str) -> list[int]:
    """Ends of the library's pieces, in UTF-8 bytes."""
    pieces = _cutter(pattern).pre_tokenize_str(text)  # each byte is one letter of the piece
    return list(accumulate(len(piece) for piece, _ in pieces))
