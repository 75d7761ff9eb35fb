"""What an encoder needs of a tokenizer, whatever file it comes from."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.tokenizer._bpe import Pattern


@dataclass(frozen=True, slots=True)
class AddedToken:
    """Found in a text before it is cut."""

    text: str
    id: int
    special: bool
    """A control token: found only in text of our own."""
    normalized: bool
    """Looked for after the text was normalized; others before."""
    swallows_left: bool = False
    swallows_right: bool = False
    """White space on that side of it belongs to it."""


@dataclass(frozen=True, slots=True)
class BpeRecipe:
    """One tokenizer. Nothing else happens to its text than what stands here."""

    vocabulary: dict[str, int]
    merges: Sequence[str] | Sequence[Sequence[str]]
    """Each "left right" or (left, right); the earlier in the list, the earlier merged, unless there are `ranks`."""
    added: tuple[AddedToken, ...]
    pattern: Pattern | None
    """How text is cut, for byte-level vocabularies; None: a SentencePiece vocabulary, which doesn't cut."""
    ranks: Sequence[int] | None = None
    """Of the merges, for lists in which some have the same."""
    ignore_merges: bool = False
    """A piece that is a token is that token, whatever merging would make of it."""
    composed: bool = False
    """Text is brought to NFC first."""
    prepend_space: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    add_bos: bool = False
