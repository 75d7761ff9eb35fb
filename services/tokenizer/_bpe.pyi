"""Types of the native module `_bpe` (native/bpe_module.cpp): the exact BPE encoder (B15)."""

import enum
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

class UnsupportedVocabulary(ValueError):
    """The vocabulary can't be encoded exactly; the message says why."""

class Pattern(enum.Enum):
    """How text is cut before merging, for byte-level vocabularies."""

    GPT2 = ...
    SMOLLM = ...
    CL100K = ...
    QWEN2 = ...
    O200K = ...
    DEEPSEEK3 = ...

class Encoder:
    """Immutable and thread-safe. Text of 2 KB and more is encoded without the interpreter lock.

    `trusting`: the text of control tokens becomes those tokens. Each thread keeps what its encoding needed, up to
    16 MB, and the process the memory of arrays that are gone, up to 16 MB, so that further texts of that size
    allocate nothing.
    UnicodeEncodeError: the text holds half of a surrogate pair. ValueError: it has 2 GiB or more.
    """

    def __init__(
        self,
        *,
        vocabulary: dict[str, int],
        merges: list[Sequence[str]],
        ranks: list[int] | None,
        raw: list[tuple[str, int, bool, bool, bool]],
        rewritten: list[tuple[str, int, bool, bool, bool]],
        composed: bool,
        pattern: Pattern | None,
        ignore_merges: bool,
        prepend_space: bool,
    ) -> None:
        """`merges`: each "left right", or a list or tuple of both; the lowest of `ranks` first, of equal ones the
        leftmost in the text. None: in the order of the list. `raw`, `rewritten`: added tokens looked for before and
        after NFC, each as (text, id, control token, swallows space before it, after it). `composed`: text is brought
        to NFC. `pattern`: None for SentencePiece vocabularies, whose text is not cut; others are byte level. Raises
        UnsupportedVocabulary, or UnicodeEncodeError for half of a surrogate pair."""

    def encode(self, text: str, trusting: bool) -> npt.NDArray[np.uint32]: ...
    def encode_into(self, text: str, buffer: npt.NDArray[np.uint32], trusting: bool) -> int:
        """Writes the ids to `buffer`, whose memory is in one piece; returns how many. ValueError: it is too small."""
    def encode_batch(self, texts: list[str], trusting: bool, threads: int) -> list[npt.NDArray[np.uint32]]:
        """Ids of each text, encoded by so many threads."""
    def texts(self) -> list[bytes]:
        """What each id of the vocabulary, without added tokens, says."""
    @property
    def table_bytes(self) -> int:
        """Memory of the tables that encoding reads."""
