"""Key chains, and orders let go in order: the pure parts of the agent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.keys import block_keys, root_key
from services.gpu_backend.kv_agent.chains import Chains
from services.gpu_backend.kv_agent.orders import InOrder
from services.gpu_backend.kv_agent.settings import AgentSettings

ROOT = root_key("test", "")
TOKENS = np.arange(6 * 64, dtype=np.uint32)
KEYS = block_keys(ROOT, TOKENS)


def follow(chains: Chains, position: int, slot: int = 1, generation: int = 7):
    tokens = TOKENS[64 * position : 64 * position + 64]
    return chains.follow(slot, generation, ROOT, position, tokens)


def test_blocks_follow_each_other() -> None:
    chains = Chains(100)
    for position in range(6):
        _, block = follow(chains, position)
        assert block is not None
        assert block.fault() == ""
        assert (block.key, block.position, block.length) == (KEYS[position], position, 100)


@pytest.mark.parametrize("loaded", [0, 2, 4])
def test_a_load_that_came_short_goes_on_from_what_was_loaded(loaded: int) -> None:
    chains = Chains(100)
    chains.begin(1, 7, ROOT, KEYS[:4])
    for position in range(loaded, 6):
        _, block = follow(chains, position)
        assert block is not None
        assert block.key == KEYS[position]


def test_a_gap_breaks_the_chain_for_good() -> None:
    chains = Chains(100)
    follow(chains, 0)
    assert follow(chains, 2)[1] is None
    assert follow(chains, 1)[1] is None
    chains.end(1, 7)
    assert follow(chains, 0)[1] is not None, "the slot's next request starts anew"


def test_requests_of_one_slot_are_apart() -> None:
    chains = Chains(100)
    follow(chains, 0, generation=7)
    follow(chains, 0, generation=8)
    chains.end(1, 7)
    chains.end(1, 7)
    assert follow(chains, 1, generation=8)[1] is not None
    assert follow(chains, 1, generation=7)[1] is None
    assert len(chains) == 2


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=60))
def test_orders_are_released_oldest_first_whatever_finishes_first(steps: list[int | None]) -> None:
    released: list[int] = []
    orders, entered, done = InOrder(released.append), 0, set()
    for step in steps:
        if step is None:
            assert orders.enter() == entered
            entered += 1
        elif entered:
            orders.done(step % entered)
            done.add(step % entered)
        run = next(n for n in range(entered + 1) if n not in done)
        assert sum(released) == run
    assert 0 not in released


def test_settings_that_cannot_be_are_named() -> None:
    with pytest.raises(ValueError, match="batches is 0"):
        AgentSettings(batches=0)
