"""Which of the native scanners cuts as a tokenizer.json's steps before BPE do."""

from services.tokenizer._bpe import Pattern

DIGITS = "<each digit apart>"
"""Stands for the step `Digits` among the regexes."""
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What the step `ByteLevel` cuts by."""
_GPT2_SHORT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^<newlines>\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[<newlines>]*|\s*[<newlines>]+|\s+(?!\S)|\s+""".replace("<newlines>", "\r\n"),
)
_PATTERNS: dict[tuple[str, ...], Pattern] = {
    (GPT2,): Pattern.GPT2,
    (_GPT2_SHORT,): Pattern.GPT2,
    (DIGITS, GPT2): Pattern.SMOLLM,
    (DIGITS, _GPT2_SHORT): Pattern.SMOLLM,
    (_CL100K,): Pattern.CL100K,
    (_CL100K.replace(r"\p{N}{1,3}", r"\p{N}"),): Pattern.QWEN2,
    (_O200K,): Pattern.O200K,
    _DEEPSEEK3: Pattern.DEEPSEEK3,
}


def pattern_of(steps: tuple[str, ...]) -> Pattern | None:
    """For regexes that are applied one after the other, each to the pieces of the one before; None: none is known."""
    return _PATTERNS.get(steps)
