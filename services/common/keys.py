"""Block keys: a chain over (model, layout, tenant, tokens), so equal keys mean equal KV bytes.

blake2b-128: collision resistant, so a tenant can't craft tokens that hit another's blocks.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BLOCK_TOKENS = 64
KEY_BYTES = 16
MARK_BYTES = 8
"""Of a key, its first bytes: enough where a mix-up costs time only."""
MARKS = 16


def root_key(kv_layout: str, tenant: str) -> bytes:
    """The chain's start for one model, layout and tenant; 16 bytes, never all zero in practice."""
    return hashlib.blake2b(f"{len(kv_layout)}:{kv_layout}{tenant}".encode(), digest_size=KEY_BYTES).digest()


def next_key(parent: bytes, tokens: npt.NDArray[np.uint32]) -> bytes:
    """Key of the block of exactly 64 `tokens` that follows `parent`."""
    if tokens.shape != (BLOCK_TOKENS,):
        raise ValueError(f"a block has {BLOCK_TOKENS} tokens, got shape {tokens.shape}")
    digest = hashlib.blake2b(parent, digest_size=KEY_BYTES)
    digest.update(np.ascontiguousarray(tokens, dtype="<u4").tobytes())
    return digest.digest()


def block_keys(root: bytes, tokens: Sequence[int] | npt.NDArray[np.uint32]) -> list[bytes]:
    """Keys of all whole blocks of `tokens`, in order."""
    array = np.asarray(tokens, dtype=np.uint32)
    keys, parent = [], root
    for begin in range(0, len(array) // BLOCK_TOKENS * BLOCK_TOKENS, BLOCK_TOKENS):
        parent = next_key(parent, array[begin : begin + BLOCK_TOKENS])
        keys.append(parent)
    return keys


def marked(blocks: int) -> list[int]:
    """Lengths of the prefixes whose last blocks' marks stand for a chain of so many blocks: spread evenly, the shortest
    first, all of the chain last; MARKS of them at most."""
    count = min(blocks, MARKS)
    return [-(-blocks * part // count) for part in range(1, count + 1)]


def marks(keys: Sequence[bytes]) -> bytes:
    """Of a chain, MARK_BYTES for each of `marked`."""
    return b"".join(keys[length - 1][:MARK_BYTES] for length in marked(len(keys)))
