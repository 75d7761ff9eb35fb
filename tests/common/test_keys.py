"""Block keys: equal exactly when model, layout, tenant and every token before are equal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.keys import BLOCK_TOKENS, KEY_BYTES, block_keys, next_key, root_key

ids = st.lists(st.integers(0, 2**32 - 1), min_size=0, max_size=4 * BLOCK_TOKENS + 3)


@given(ids)
def test_one_key_a_whole_block(tokens: list[int]) -> None:
    keys = block_keys(root_key("m", ""), tokens)
    assert len(keys) == len(tokens) // BLOCK_TOKENS
    assert all(len(key) == KEY_BYTES for key in keys)


@given(ids, st.integers(0, 4 * BLOCK_TOKENS), st.integers(1, 2**32 - 1))
def test_a_changed_token_changes_its_block_and_all_after(tokens: list[int], at: int, delta: int) -> None:
    if at >= len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS:
        return
    changed = list(tokens)
    changed[at] = (changed[at] + delta) % 2**32
    before, after = (block_keys(root_key("m", ""), t) for t in (tokens, changed))
    block = at // BLOCK_TOKENS
    assert before[:block] == after[:block]
    assert all(a != b for a, b in zip(before[block:], after[block:], strict=True))


def test_roots_differ_by_layout_and_tenant_unambiguously() -> None:
    roots = {
        root_key(layout, tenant) for layout, tenant in [("m", ""), ("m", "a"), ("ma", ""), ("", "ma"), ("m", "aa")]
    }
    assert len(roots) == 5


def test_wrong_block_length_is_refused() -> None:
    with pytest.raises(ValueError, match="64 tokens"):
        next_key(b"\0" * 16, np.zeros(63, np.uint32))
