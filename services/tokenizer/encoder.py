"""Encoder: text to token ids and back to bytes (B15)."""

import abc
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.uint32]


class UnsupportedTokenizer(ValueError):
    """The model's tokenizer is of a kind that no encoder handles; the message names it."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a tokenizer's table says, apart from how text is cut."""

    size: int
    """Ids are in [0, size)."""
    token_bytes: tuple[bytes, ...]
    """Bytes of each id's text; empty for control tokens, which have no text, and for unused ids."""
    control: dict[str, int]
    """Text of each control token (end of turn, begin of text, ...) and its id."""
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """Ids that end a generation, the model's own end token first. May be empty."""
    add_bos: bool
    """The model was trained with a begin token before every text."""
    longest: int | None
    """No token stands for more UTF-8 bytes of a text than that. None: there is no such bound."""

    def __post_init__(self) -> None:
        """Raises UnsupportedTokenizer where a begin or end token is no token's id."""
        if self.bos_id is not None and self.bos_id not in range(self.size):
            raise UnsupportedTokenizer(f"the begin token {self.bos_id!r} is not among {self.size} tokens")
        for token_id in self.eos_ids:  # a model may have more ids than its tokenizer has tokens
            if not isinstance(token_id, int) or token_id not in range(1 << 32):
                raise UnsupportedTokenizer(f"the end token {token_id!r} is no id")

    def text_of(self, token_id: int | None) -> str:
        """Text of a control token by id, as chat templates want it; empty if it is none."""
        return next((text for text, i in self.control.items() if i == token_id), "")

    def least_tokens(self, text: str) -> int:
        """Fewer tokens can't make up `text`. Takes no time, compared with encoding. Raises UnicodeEncodeError."""
        size = len(text.encode())
        return -(-size // self.longest) if self.longest else 0


class Encoder(abc.ABC):
    """Stateless and safe to call from several threads; encoding holds no interpreter lock for long."""

    vocabulary: Vocabulary

    @abc.abstractmethod
    def encode(self, text: str, *, add_special: bool) -> TokenIds:
        """Token ids of `text`. Never adds a begin or end token.

        add_special=False: the text of a control token is cut like any other text, so that what a user
        writes never becomes a control token. True: it becomes that token; for text of our own only.
        """
