"""The `tokenizer.ggml.*` keys of a GGUF file read as a BpeRecipe."""

from typing import Any

from services.tokenizer._bpe import Pattern
from services.tokenizer.bpe_recipe import AddedToken, BpeRecipe
from services.tokenizer.encoder import UnsupportedTokenizer

CONTROL, USER_DEFINED = 3, 4  # token types

# How each `tokenizer.ggml.pre` cuts text, as the models' own tokenizer.json files do.
_PATTERNS = {
    "gpt-2": Pattern.GPT2,
    "smollm": Pattern.SMOLLM,
    "llama-bpe": Pattern.CL100K,
    "llama3": Pattern.CL100K,
    "dbrx": Pattern.CL100K,  # Phi-4
    "qwen2": Pattern.QWEN2,
    "gpt-4o": Pattern.O200K,
    "deepseek-v3": Pattern.DEEPSEEK3,
}
# A merge list that omits pairs whose result is a token itself is made for whole-word look-up first.
_IGNORE_MERGES = frozenset({"llama-bpe", "llama3"})
_COMPOSED = frozenset({"qwen2"})


def read_recipe(metadata: dict[str, Any]) -> BpeRecipe:
    """Of a byte-level vocabulary. Raises UnsupportedTokenizer."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in _PATTERNS:
        raise UnsupportedTokenizer(
            f"GGUF tokenizer model={kind!r} pre={pre!r}; supported: gpt2 with pre in {', '.join(sorted(_PATTERNS))}"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    vocabulary = {text: i for i, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise UnsupportedTokenizer("a GGUF vocabulary with two tokens of one text")
    eos = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return BpeRecipe(
        vocabulary=vocabulary,
        merges=metadata["tokenizer.ggml.merges"],
        added=tuple(
            AddedToken(text, i, special=kind == CONTROL, normalized=False)
            for i, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind in (CONTROL, USER_DEFINED)
        ),
        pattern=_PATTERNS[pre],
        ignore_merges=pre in _IGNORE_MERGES,
        composed=pre in _COMPOSED,
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_ids=tuple(dict.fromkeys(i for i in eos if i is not None)),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
    )
