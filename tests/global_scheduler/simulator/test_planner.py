"""The planner, its charts and tables."""

import csv
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.global_scheduler.simulator import planner
from services.global_scheduler.simulator.charts import ascii_bars, bars, lines
from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.driver import simulate
from services.global_scheduler.simulator.online import Slo, Window, capacity, serve
from services.global_scheduler.simulator.systems import SYSTEMS
from services.global_scheduler.simulator.tables import row, write
from services.global_scheduler.simulator.workload import Workload

WINDOW = Window(10, 20)
TIGHT = Slo(ttft_s=0.12, tpot_s=0.05)


def test_capacity_is_the_last_rate_that_holds(small: Cluster, work: Workload) -> None:
    system = SYSTEMS["dualpath"]
    best = capacity(small, system, work, TIGHT, window=WINDOW, start=4.0, precision=0.1)
    assert best is not None
    assert best.holds(TIGHT)
    assert not serve(small, system, work, best.agents_per_s * 1.25, window=WINDOW).holds(TIGHT)


def test_plan_finds_the_best_split(small: Cluster, work: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "BETAS", (1 << 20,))
    monkeypatch.setattr(planner, "QUOTAS_S", (0.3,))
    monkeypatch.setattr(planner, "ALPHAS", (1 << 18, 1 << 16))
    slow = replace(small.hardware, nic_gbytes_per_s=small.hardware.nic_gbytes_per_s / 4)
    wish = planner.Wish(3, small.model, slow, work, TIGHT, WINDOW)
    found = planner.plan(wish)
    assert [split.name for split in found.splits] == ["1P2D", "2P1D"]
    assert found.best.agents_per_s == max(split.agents_per_s for split in found.splits)
    assert found.tuned_agents_per_s >= found.best.agents_per_s
    assert found.free is not None
    assert found.free.low == Fraction(1, 7)
    assert all(0 <= lost <= 1 for lost in found.cost_of_being_wrong().values())


@given(st.integers(1, 150), st.data())
def test_search_finds_the_top_with_few_simulations(count: int, data: st.DataObject) -> None:
    top = data.draw(st.integers(1, count))
    left, right = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    possible = list(range(1, count + 1))
    rates: dict[int, float] = {}
    stride = count + 1
    while stride > 1:
        wanted, stride = planner.next_splits(possible, rates, stride)
        rates |= {nodes: 1e4 - (left * (top - nodes) if nodes < top else right * (nodes - top)) for nodes in wanted}
    assert max(rates, key=lambda nodes: rates[nodes]) == top
    assert {top - 1, top + 1} & set(possible) <= set(rates)
    assert len(rates) <= 4 * planner.SPLITS


def test_tables(tmp_path: Path, small: Cluster, work: Workload) -> None:
    rows = [row(simulate(small, SYSTEMS[name], work)) for name in ("basic", "dualpath")]
    write(rows, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        assert [line["system"] for line in csv.DictReader(file)] == ["basic", "dualpath"]
    with pytest.raises(ValueError, match="nothing to write"):
        write([], tmp_path / "rows.csv")


def test_charts_are_well_formed() -> None:
    for drawing in (
        bars("a < b", ["x", "y"], {"paper": [1, 2], "ours": [1.1, 0]}),
        lines("growth", "GPUs", {"measured": [(48, 1.0), (96, 2.0)]}),
    ):
        ElementTree.fromstring(drawing)
    assert ascii_bars({"1P1D": 1.0, "2P1D": 0.5}, width=4).splitlines()[1].count("#") == 2
