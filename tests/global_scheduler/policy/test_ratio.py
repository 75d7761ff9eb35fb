"""The closed form of D14: the paper's example, and its bounds against the loads of each link."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.global_scheduler.policy.ratio import Link, NodeShape, bottleneck_free, bounds, loads, pair_rates

GB = 10**9
PAPER = NodeShape(gpus=8, storage_nics=1, memory_bandwidth=500 * GB, nic_bandwidth=50 * GB)

nodes = st.builds(
    NodeShape, st.integers(1, 16), st.integers(1, 8), st.floats(50, 2000).map(lambda x: x * GB), st.just(50.0 * GB)
)
counts = st.integers(1, 40)


def test_the_papers_example() -> None:
    found = bottleneck_free(PAPER)
    assert found is not None
    assert (found.low, found.high) == (Fraction(1, 7), Fraction(7, 2))
    assert found.low_link is Link.PREFILL_NIC_IN
    assert found.high_link is Link.DECODE_NIC_IN
    assert {each.link: each.high for each in bounds(PAPER) if each.high} == {
        Link.DECODE_NIC_OUT: 6,
        Link.DECODE_NIC_IN: Fraction(7, 2),
        Link.DECODE_DRAM: Fraction(7, 2),
    }


@given(nodes, counts, counts)
def test_a_link_allows_a_ratio_exactly_if_it_carries_it(node: NodeShape, prefill: int, decode: int) -> None:
    used = loads(node, prefill, decode)
    for each in bounds(node):
        assert each.allow(Fraction(prefill, decode)) == (used[each.link] <= 1), each


@given(nodes, counts, counts)
def test_the_range_is_where_all_links_carry(node: NodeShape, prefill: int, decode: int) -> None:
    found = bottleneck_free(node)
    inside = found is not None and found.low <= Fraction(prefill, decode) <= found.high
    assert inside == all(load <= 1 for load in loads(node, prefill, decode).values())


@given(nodes, counts, counts)
def test_the_papers_forms_of_the_traffic(node: NodeShape, prefill: int, decode: int) -> None:
    t_p, t_c = pair_rates(node, prefill, decode)
    read, ratio = node.storage_bandwidth, Fraction(prefill, decode)
    assert t_p == read / (decode * node.gpus**2)
    assert t_c == read / (prefill * node.gpus**2)
    used, memory = loads(node, prefill, decode), Fraction(node.memory_bandwidth)
    assert used[Link.PREFILL_DRAM] == 2 * read / memory
    assert used[Link.DECODE_DRAM] == (3 + 2 * ratio) * read / memory


@pytest.mark.parametrize(
    ("node", "link"),
    [
        (NodeShape(2, 2, 500, 50), Link.PREFILL_NIC_IN),
        (NodeShape(3, 2, 500, 50), Link.PREFILL_NIC_OUT),
        (NodeShape(8, 1, 90, 50), Link.PREFILL_DRAM),
    ],
)
def test_no_ratio_does_where_a_link_is_too_slow_at_any(node: NodeShape, link: Link) -> None:
    assert bottleneck_free(node) is None
    assert link in [each.link for each in bounds(node) if each.never]


def test_a_shape_without_a_part_is_named() -> None:
    with pytest.raises(ValueError, match="storage_nics: 0"):
        NodeShape(8, 0, 500, 50)
