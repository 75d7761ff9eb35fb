"""The next prefill step (D13) against one that grows token by token; the fit against times it must give back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.global_scheduler.policy.attention_time import AttentionTime, Sample, fit, pairs
from services.global_scheduler.policy.chunk import Prompt, Quota, next_chunks

# Whole numbers, so that sums are exact in whatever order.
times = st.builds(AttentionTime, *[st.integers(0, 5).map(float)] * 3)
quotas = st.builds(Quota, st.integers(1, 3000).map(float), st.integers(1, 60))
prompts = st.lists(st.builds(Prompt, st.integers(0, 50), st.integers(1, 30)), max_size=8)


def reference(waiting: list[Prompt], time: AttentionTime, quota: Quota) -> list[int]:
    """Gives tokens one by one, first to the first, while the whole step stays within the quota."""
    given_out: list[int] = []

    def cost() -> float:
        return sum(time.seconds(p.cached, n) for p, n in zip(waiting, given_out, strict=False))

    for prompt in waiting:
        given_out.append(0)
        while given_out[-1] < prompt.bsz:
            given_out[-1] += 1
            if cost() > quota.attention_s or sum(given_out) > quota.tokens:
                given_out[-1] -= 1
                break
        if given_out[-1] < prompt.bsz:
            break
    if given_out and not given_out[0]:
        return [1]
    return [n for n in given_out if n]


@given(prompts, times, quotas)
def test_equals_the_reference(waiting: list[Prompt], time: AttentionTime, quota: Quota) -> None:
    assert next_chunks(waiting, time, quota) == reference(waiting, time, quota)


def test_the_one_that_overflows_is_cut_and_none_comes_after_it() -> None:
    time = AttentionTime(0, 0, 1)
    waiting = [Prompt(cached=10, bsz=2), Prompt(cached=100, bsz=8), Prompt(cached=0, bsz=1)]
    assert next_chunks(waiting, time, Quota(23 + 4 * 100 + 10, 100)) == [2, 4]


def test_the_first_moves_whatever_it_costs() -> None:
    assert next_chunks([Prompt(10**6, 9), Prompt(0, 1)], AttentionTime(1, 1, 1), Quota(0.5, 10)) == [1]


@given(st.integers(0, 40), st.integers(1, 40))
def test_pairs_are_counted_query_by_query(cached: int, bsz: int) -> None:
    assert pairs(cached, bsz) == sum(cached + 1 + index for index in range(bsz))


SHAPES = [(cached, bsz) for cached in (0, 1000, 30_000) for bsz in (1, 64, 500, 4000)]


@pytest.mark.parametrize("true", [(1e-4, 2e-7, 3e-11), (0, 2e-7, 3e-11), (1e-4, 0, 0), (0, 0, 3e-11)])
def test_the_fit_gives_back_what_was_measured(true: tuple[float, float, float]) -> None:
    time = AttentionTime(*true)
    found = fit([Sample(cached, bsz, time.seconds(cached, bsz)) for cached, bsz in SHAPES])
    for cached, bsz in [*SHAPES, (7, 7), (60_000, 429)]:
        assert found.seconds(cached, bsz) == pytest.approx(time.seconds(cached, bsz), rel=1e-6)


@given(st.lists(st.builds(Sample, st.integers(0, 10**5), st.integers(1, 10**4), st.floats(1e-6, 1)), min_size=1))
def test_a_fit_to_anything_grows_with_the_tokens(samples: list[Sample]) -> None:
    found = fit(samples)
    assert found.seconds(100, 1) <= found.seconds(100, 2) <= found.seconds(101, 2)


@pytest.mark.parametrize("samples", [[], [Sample(0, 0, 1.0)], [Sample(0, 1, 0.0)]])
def test_what_is_no_measurement_is_refused(samples: list[Sample]) -> None:
    with pytest.raises(ValueError, match=r"samples|measured"):
        fit(samples)
