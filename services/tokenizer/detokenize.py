"""Token ids to text as they come: whole characters only, in linear time, with at most three bytes of state."""

import codecs
from collections.abc import Sequence


class TokenText:
    """What each token id of a vocabulary says; shared by all requests of a model."""

    def __init__(self, token_bytes: Sequence[bytes], size: int) -> None:
        """`size` ids, at least as many as the engine can emit; those past `token_bytes` say nothing."""
        self.bytes = [*token_bytes, *[b""] * (size - len(token_bytes))]
        self.whole = [_whole(data) for data in self.bytes]
        """The text, for tokens that are whole characters by themselves (nearly all); None for the others."""


def _whole(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class Detokenizer:
    """One request's text. Joined results of `push` and `finish` equal decode(all ids), errors as U+FFFD."""

    __slots__ = ("_held", "_text")

    def __init__(self, text: TokenText) -> None:
        self._text = text
        self._held = b""

    def push(self, ids: Sequence[int]) -> str:
        """The characters that these ids complete. Bytes of a character still open are held back."""
        if len(ids) == 1 and not self._held:  # nearly always
            whole = self._text.whole[ids[0]]
            if whole is not None:
                return whole
        parts = []
        for token in ids:
            whole = None if self._held else self._text.whole[token]
            parts.append(self._open(self._text.bytes[token]) if whole is None else whole)
        return "".join(parts)

    def finish(self) -> str:
        """What is held back; a character that was never completed becomes U+FFFD."""
        text = self._held.decode(errors="replace")
        self._held = b""
        return text

    def _open(self, data: bytes) -> str:
        data = self._held + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text
