"""D13 in the core: the same chunks as the policy chooses, of which the scheduler on a GPU is the same code."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.global_scheduler.policy.attention_time import AttentionTime
from services.global_scheduler.policy.chunk import Prompt, Quota, next_chunks
from services.gpu_backend._scheduler import KvOrderKind
from services.gpu_backend.engine import PAGE_TOKENS, StepKind
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.toy import prompt_tokens
from tests.gpu_backend.scheduler.world import World

LANES, FS = 8, 1e-15
BLOCKS, REST = 3, 190
"""Most of a prompt that the store has, and tokens that it lacks."""
PAGES = LANES * (BLOCKS + REST // PAGE_TOKENS + 1)
"""All prompts at once: one that waited for pages would not be where the policy has it."""

times = st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 5)) | st.tuples(
    st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**6)
)
"""Femtoseconds."""


def world(time: tuple[int, int, int], quota: int, **changes: Any) -> World:
    request, token, pair = time
    values: dict[str, Any] = {
        "lanes": LANES, "step_tokens": 256, "pages": PAGES, "kv_orders": True, "store_limit": PAGES,
        "attention_time": (request * FS, token * FS, pair * FS), "attention_quota_s": quota * FS,
    }  # fmt: skip
    return World(SchedulerSettings(**(values | changes)), front_ends=1)


def answer_loads(w: World) -> None:
    for order in w.orders.take():
        if int(order["kind"]) == KvOrderKind.LOAD:
            tokens = prompt_tokens(int(order["kv_reads"]) - 1, 512)
            for i, page in enumerate(w.orders.pages_of(order).tolist()):
                w.engine.kv[page] = tokens[i * PAGE_TOKENS : (i + 1) * PAGE_TOKENS]
            w.orders.answer_load(order, int(order["block_count"]))
    w.orders.release(w.orders.unreleased)


@settings(max_examples=200, deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(1, BLOCKS), st.integers(1, REST)), min_size=1, max_size=LANES),
    time=times,
    quota=st.integers(1, 30_000) | st.integers(1, 10**14),
    tokens=st.sampled_from([0, 30, 100]),
)
@example([(3, 188), (3, 188), (2, 16), (3, 188), (1, 131), (3, 188), (3, 183), (3, 3)], (3, 13, 0), 15_341, 30)
def test_chunks_are_those_of_the_policy(
    prompts: list[tuple[int, int]], time: tuple[int, int, int], quota: int, tokens: int
) -> None:
    """prompts: blocks that the store has, and tokens that it lacks."""
    w = world(time, quota, prefill_chunk=tokens)
    cached = {}
    for number, (blocks, rest) in enumerate(prompts):
        hit = blocks * PAGE_TOKENS
        cached[w.submit(hit + rest, 1, cached=hit, seed=number).slot] = Prompt(hit, rest)
    w.turn()
    answer_loads(w)
    w.turn()
    while cached:
        w.land()
        w.turn()
        chunks = next_chunks(cached.values(), AttentionTime(*map(float, time)), Quota(float(quota), tokens or 256))
        assert w.steps[-1].counts == tuple(chunks)
        for slot, chunk in zip(list(cached), chunks, strict=False):
            done, left = cached.pop(slot)
            if left > chunk:
                cached = {slot: Prompt(done + chunk, left - chunk), **cached}
    w.finish()
    assert all(request.tokens == request.expected for request in w.done)


def test_decodes_are_not_bound_by_the_quota() -> None:
    w = world((0, 1, 0), 10, mixed_tokens=64, kv_orders=False)
    for _ in range(3):
        w.submit(5, 20)
    w.finish()
    assert w.steps[0].counts == (5, 5)
    assert w.steps[1].counts == (5, 1, 1)
    assert (w.steps[2].kind, w.steps[2].counts) == (StepKind.DECODE, (1, 1, 1))


def test_times_that_could_overflow_are_refused() -> None:
    with pytest.raises(ValueError, match="overflow"):
        world((0, 0, 10**14), 1)
    with pytest.raises(ValueError, match="negative"):
        world((0, -1, 0), 1)
