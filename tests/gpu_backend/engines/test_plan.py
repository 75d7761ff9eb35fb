"""Plans against a row-by-row reference, and steps that must be refused."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_backend.engine import PAGE_TOKENS, STEP_SEQUENCE, EngineError, ModelGeometry, StepKind, StepView
from services.gpu_backend.engines.plan import group_by_pages, plan_step

GEOMETRY = ModelGeometry(
    layers=2, heads=4, kv_heads=2, head_dim=8, vocab=100, max_context=320, dtype="float32", identity="t"
)
LANES, LANE_PAGES = 8, 5
PAGES = LANES * LANE_PAGES


def make_view(sequences: list[tuple[int, int, int, int]], seed: int = 0) -> StepView:
    """Of (lane, position, token_count, sample)."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(len(sequences), STEP_SEQUENCE)
    at = 0
    for row, (lane, position, count, wants) in zip(rows, sequences, strict=True):
        row["lane"], row["position"], row["token_count"], row["sample"] = lane, position, count, wants
        row["token_begin"], row["slot"] = at, lane + 70
        at += count
    return StepView(
        StepKind.PREFILL,
        len(sequences),
        at,
        rows,
        rng.integers(0, 100, at, dtype=np.uint32),
        rng.permutation(PAGES).reshape(LANES, LANE_PAGES).astype(np.uint32),
        np.zeros(len(sequences), np.uint32),
    )


sequence = st.tuples(st.integers(0, 250), st.one_of(st.integers(0, 2), st.integers(0, 70)), st.integers(0, 1))


@settings(max_examples=150, deadline=None)
@given(st.lists(sequence, max_size=LANES), st.permutations(range(LANES)), st.integers(0, 100))
def test_every_token_gets_its_own_place(rows: list[tuple[int, int, int]], lanes: list[int], seed: int) -> None:
    view = make_view([(lane, *row) for lane, row in zip(lanes, rows, strict=False)], seed)
    plan = plan_step(view, GEOMETRY, PAGES)
    expected = set()
    for row in view.sequences:
        for j in range(int(row["token_count"])):
            position = int(row["position"]) + j
            page = int(view.block_tables[row["lane"], position // PAGE_TOKENS])
            expected.add((int(view.tokens[row["token_begin"] + j]), position, page, position % PAGE_TOKENS))
    found = zip(plan.tokens, plan.positions, plan.write_pages, plan.write_offsets, strict=True)
    assert {tuple(int(n) for n in place) for place in found} == expected
    assert len(plan.tokens) == view.token_count

    wanted = np.flatnonzero((view.sequences["sample"] == 1) & (view.sequences["token_count"] > 0))
    assert sorted(plan.sampled_sequences.tolist()) == wanted.tolist()
    for row, index in zip(plan.sampled_rows, plan.sampled_sequences, strict=True):
        chosen = view.sequences[index]
        last = int(chosen["position"]) + int(chosen["token_count"]) - 1
        assert plan.positions[row] == last
        assert plan.write_pages[row] == view.block_tables[chosen["lane"], last // PAGE_TOKENS]

    covered = [row for group in plan.singles for row in range(group.begin, group.begin + len(group.lengths))]
    covered += [row for chunk in plan.chunks for row in range(chunk.begin, chunk.begin + chunk.count)]
    assert covered == list(range(len(plan.tokens)))
    tables = {int(table[0]): table for table in view.block_tables}
    for group in plan.singles:
        for pages, length in zip(group.pages, group.lengths, strict=True):
            used = -(-int(length) // PAGE_TOKENS)
            assert pages[:used].tolist() == tables[int(pages[0])][:used].tolist()
            assert set(pages[used:].tolist()) <= {int(pages[0])}


@given(st.lists(st.integers(1, 40), max_size=40), st.integers(1, 60))
def test_groups_cover_all_pad_little_and_stay_small(counts: list[int], most: int) -> None:
    ordered = np.sort(np.array(counts, np.int64))
    groups = group_by_pages(ordered, most)
    assert [i for begin, end in groups for i in range(begin, end)] == list(range(len(counts)))
    for begin, end in groups:
        real, padded = int(ordered[begin:end].sum()), int(ordered[end - 1]) * (end - begin)
        assert end - begin == 1 or (padded - real <= 4 + real // 8 and padded <= most)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lane": LANES}, r"lane 8: its lane is none of 8"),
        ({"position": 320}, "past position 320"),
        ({"token_begin": 9}, "tokens past the step's 7"),
        ({"lane": 1}, "share a lane"),
    ],
)
def test_a_sequence_out_of_bounds_is_refused(change: dict[str, int], message: str) -> None:
    view = make_view([(1, 0, 5, 1), (3, 10, 2, 1)])
    for name, value in change.items():
        view.sequences[name][1] = value
    with pytest.raises(EngineError, match=message):
        plan_step(view, GEOMETRY, PAGES)


def test_tokens_and_pages_out_of_bounds_are_refused() -> None:
    view = make_view([(2, 60, 10, 1)])
    view.tokens[3] = 100
    with pytest.raises(EngineError, match="token 100 is outside the vocabulary of 100"):
        plan_step(view, GEOMETRY, PAGES)
    view.tokens[3] = 99
    view.block_tables[2, 1] = 77
    with pytest.raises(EngineError, match=r"slot 72: page 77 .* none of 40"):
        plan_step(view, GEOMETRY, PAGES)
    view.block_tables[2, 1], view.block_tables[2, 4] = 3, 9999  # a column that nothing reaches yet
    plan_step(view, GEOMETRY, PAGES)


def test_a_step_of_padding_is_empty() -> None:
    plan = plan_step(make_view([(0, 0, 0, 1), (1, 5, 0, 1)]), GEOMETRY, PAGES)
    assert len(plan.tokens) == len(plan.sampled_rows) == 0


def test_only_counted_sequences_are_read() -> None:
    view = make_view([(0, 0, 1, 1), (99, 0, 4, 1)])
    assert len(plan_step(dataclasses.replace(view, sequence_count=1), GEOMETRY, PAGES).tokens) == 1
