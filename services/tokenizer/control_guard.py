"""Keeps what a user writes from becoming control tokens, however a chat template arranges it.

Every control-token text inside a user's string is broken in two by a mark that nobody can guess, and so
is a string's end that could be completed to one by what follows. The template then reads and moves those
strings as ever. In its output, whole control-token texts are the template's own; the marks are removed
from the rest, which is cut as ordinary text, in one piece across the border of template and content.

Limits: a template sees a broken text's length and pieces with the mark in them, so one that counts or
slices characters may act on the mark; one that deletes characters inside content could make a control
token out of harmless text. In a prompt that holds such text, space around control tokens stays even if
the vocabulary says that the token swallows it.
"""

import re
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np

from services.tokenizer.encoder import Encoder, TokenIds, UnsupportedTokenizer, Vocabulary

# Two noncharacters around digits: no template's trim, case change or JSON writing alters them.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"


class ControlGuard:
    """For one vocabulary. Thread-safe; `protect` and `encode` of one prompt share its mark."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if lone := [text for text in vocabulary.control if len(text) < 2]:
            raise UnsupportedTokenizer(
                f"control token {lone[0]!r} is a single character, which can't be told from text"
            )
        self._control = vocabulary.control
        texts = sorted(vocabulary.control, key=len, reverse=True)
        self._longest = len(texts[0]) if texts else 0
        self._starts = frozenset(text[:n] for text in texts for n in range(1, len(text)))
        self._ends = frozenset(text[-n:] for text in texts for n in range(1, len(text)))
        self._found = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        edges = {re.escape(text[end]) for text in texts for end in (0, -1)}
        self._edges = re.compile(f"[{''.join(sorted(edges))}]" if edges else r"(?!)")

    def new_mark(self) -> str:
        """A mark for one prompt."""
        return f"{_OPEN}{secrets.randbelow(10**20):020d}{_CLOSE}"

    def protect(self, value: Any, mark: str) -> Any:
        """A copy of a JSON value in which no string, nor two strings side by side, holds a control-token text."""
        if isinstance(value, str):
            return self._break(value, mark)
        if isinstance(value, list):
            return [self.protect(item, mark) for item in value]
        if isinstance(value, dict):
            return {self._break(key, mark): self.protect(item, mark) for key, item in value.items()}
        return value

    def encode(self, rendered: str, mark: str, encoder: Encoder) -> TokenIds:
        """Ids of a template's output for protected values: control tokens only where the template wrote them."""
        if mark not in rendered:
            return encoder.encode(rendered, add_special=True)
        pieces, at = [], 0
        for match in self._found.finditer(rendered):
            pieces.append(encoder.encode(rendered[at : match.start()].replace(mark, ""), add_special=False))
            pieces.append(np.array([self._control[match.group()]], dtype=np.uint32))
            at = match.end()
        pieces.append(encoder.encode(rendered[at:].replace(mark, ""), add_special=False))
        return np.concatenate(pieces)

    def _break(self, text: str, mark: str) -> str:
        if self._edges.search(text) is None:  # nearly every string of a list of tools
            return text
        # Overlapping occurrences: each break is after the first character, and the search goes on from there.
        parts, at = [], 0
        for start in self._occurrences(text):
            parts.append(text[at : start + 1])
            at = start + 1
        broken = mark.join([*parts, text[at:]])
        if self._touches(text, self._starts, ends=True):
            broken += mark
        if self._touches(text, self._ends, ends=False):
            broken = mark + broken
        return broken

    def _occurrences(self, text: str) -> Iterable[int]:
        match = self._found.search(text)
        while match:
            yield match.start()
            match = self._found.search(text, match.start() + 1)

    def _touches(self, text: str, partial: frozenset[str], *, ends: bool) -> bool:
        lengths = range(1, min(self._longest, len(text) + 1))
        return any((text[-n:] if ends else text[:n]) in partial for n in lengths)
