"""Rates kept up to date link by link against progressive filling of everything."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from services.global_scheduler._simulator import FlowNetwork

Way = dict[int, float]  # link -> bytes it carries for each byte of the flow


def progressive_filling(capacity: list[float], flows: dict[int, Way]) -> dict[int, float]:
    """Max-min fair by its definition: all rates rise together; when a link is full, its flows stop there."""
    left, rates, rising = list(capacity), {}, dict(flows)
    level = 0.0
    while rising:
        pull = [sum(way.get(link, 0.0) for way in rising.values()) for link in range(len(capacity))]
        step = min(left[link] / pull[link] for link in range(len(capacity)) if pull[link] > 0)
        level += step
        left = [room - step * weight for room, weight in zip(left, pull, strict=True)]
        full = {link for link in range(len(capacity)) if pull[link] > 0 and left[link] <= 1e-9 * capacity[link]}
        for flow in [flow for flow, way in rising.items() if full & way.keys()]:
            rates[flow] = level
            del rising[flow]
    return rates


links = st.lists(st.floats(1, 1000), min_size=1, max_size=8)
changes = st.lists(
    st.one_of(
        st.dictionaries(st.integers(0, 7), st.sampled_from([1.0, 2.0]), min_size=1, max_size=4),
        st.integers(0, 30),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(links, changes)
def test_rates_are_max_min_fair_after_every_change(capacity: list[float], steps: list[Way | int]) -> None:
    net, flows = FlowNetwork(), {}
    for bytes_per_s in capacity:
        net.add_link(bytes_per_s)
    for step in steps:
        if isinstance(step, dict):
            way = {link % len(capacity): weight for link, weight in step.items()}
            flows[net.start(0.0, 1e9, list(way), list(way.values()))] = way
        elif flows:
            gone = sorted(flows)[step % len(flows)]
            net.settle(0.0)  # a flow that ends has had a rate
            net.finish(gone)
            del flows[gone]
        net.settle(0.0)
        for flow, rate in progressive_filling(capacity, flows).items():
            assert math.isclose(net.rate(flow), rate, rel_tol=1e-6)


def test_a_flow_ends_when_its_bytes_have_moved() -> None:
    net = FlowNetwork()
    link = net.add_link(10.0)
    first = net.start(0.0, 100.0, [link], [1.0])
    net.settle(0.0)
    assert net.next() == 10.0
    second = net.start(4.0, 30.0, [link], [1.0])
    net.settle(4.0)
    assert (net.next(), net.next_flow()) == (10.0, second)  # 60 and 30 left, 5 a second each
    net.finish(second)
    net.settle(10.0)
    assert (net.next(), net.next_flow()) == (13.0, first)
