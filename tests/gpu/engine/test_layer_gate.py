"""layer_gate.cuh, compiled for the host as a block of one thread, with the agent's side of it (D6). Needs g++."""

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from services.gpu_backend import _scheduler
from services.gpu_backend.device import pass_tables
from services.gpu_backend.device.device_layers import DeviceLayers
from services.gpu_backend.device.pass_tables import KEPT, PassTables, tables_bytes
from services.gpu_backend.engine import STEP_SEQUENCE
from services.gpu_backend.layers import Pass
from tests.gpu.engine.host_library import host_library
from tests.waiting import wait_until

KERNELS = Path(__file__).parents[3] / "services/gpu_backend/engines/cuda/kernels"
LANES, LANE_PAGES, LAYERS = 4, 6, 5
GLUE = """
#include <cstddef>
#include "layer_gate.cuh"
using namespace hostless_gate;
extern "C" void pass_layer(Gate* g, Sequence* s, const u32* count, const u32* tables, u32* error, u32 layer, u32 all) {
  pass(*g, s, count, tables, error, layer, all);
}
extern "C" void layout(u64* of) {
  const u64 found[] = {sizeof(Sequence), offsetof(Sequence, sample), offsetof(Sequence, slot),
                       offsetof(Sequence, hands_over), sizeof(Table), offsetof(Table, computed), offsetof(Table, over),
                       sizeof(Row), offsetof(Row, lost), kTables, kFailed, kOpen, offsetof(Gate, waiting)};
  for (u64 i = 0; i < sizeof(found) / 8; ++i) of[i] = found[i];
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return host_library(tmp_path_factory.mktemp("gate"), GLUE, KERNELS, "-Wall", "-Wextra", "-Werror", "-pthread")


def aligned(count: int) -> NDArray[np.uint8]:
    memory = np.zeros(count + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][:count]


class Card:
    """What lies in the GPU's memory and in the host's, and steps over it. Lane n has pages 10 n, 10 n + 1, ..."""

    def __init__(
        self, library: ctypes.CDLL, patience_s: float = 30, lanes: int = LANES, lane_pages: int = LANE_PAGES
    ) -> None:
        self._library = library
        self.words = aligned(8 * lanes)
        self.tables_memory = aligned(tables_bytes(lanes, lane_pages))
        fields: Any = [(name, "<u8") for name in ("words", "begun", "patience_ns", "told")]
        fields += [(name, "<u4") for name in ("lanes", "lane_pages", "tells", "waits")] + [("waiting", "<u4", lanes)]
        self.gate = np.zeros(1, fields)
        self.gate["words"], self.gate["begun"] = self.words.ctypes.data, self.tables_memory.ctypes.data
        self.gate["patience_ns"], self.gate["lanes"], self.gate["lane_pages"] = patience_s * 1e9, lanes, lane_pages
        self.tables = PassTables(self.tables_memory, lanes, lane_pages)
        self.layers = DeviceLayers(self.words, 0, lanes, self.tables)
        self.sequences = np.zeros(lanes, STEP_SEQUENCE)
        self.count, self.error = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
        self.block_tables = (10 * np.arange(lanes)[:, None] + np.arange(lane_pages)).astype(np.uint32)

    def begin(self, *rows: dict[str, int]) -> None:
        """A step is assembled."""
        self.sequences["token_count"] = 7  # stale
        for i, row in enumerate(rows):
            self.sequences[i] = 0
            for name, value in row.items():
                self.sequences[i][name] = value
        self.count[0], self.error[0] = len(rows), 0

    def run(self, first: int = 0, end: int = LAYERS + 1) -> None:
        """Nodes [first, end) of the step: before each layer, and behind the last one."""
        for layer in range(first, end):
            where = (self.gate, self.sequences, self.count, self.block_tables, self.error)
            self._library.pass_layer(*(ctypes.c_void_p(each.ctypes.data) for each in where), layer, LAYERS)


def handed(slot: int, lane: int, position: int, count: int, last: int = 1) -> dict[str, int]:
    return {"slot": slot, "generation": 3, "lane": lane, "position": position, "token_count": count, "sample": last,
            "hands_over": 1}  # fmt: skip


def test_layouts_are_those_of_the_host(library: ctypes.CDLL) -> None:
    found = np.zeros(13, np.uint64)
    library.layout(ctypes.c_void_p(found.ctypes.data))
    fields, table, row = STEP_SEQUENCE.fields, pass_tables.TABLE.fields, pass_tables.ROW.fields
    assert fields is not None
    assert table is not None
    assert row is not None
    assert found.tolist() == [
        STEP_SEQUENCE.itemsize, fields["sample"][1], fields["slot"][1], fields["hands_over"][1],
        pass_tables.TABLE.itemsize, table["computed"][1], table["over"][1], pass_tables.ROW.itemsize, row["lost"][1],
        KEPT, _scheduler.LAYERS_FAILED, _scheduler.LAYERS_OPEN, 48,
    ]  # fmt: skip


def test_passes_are_told_layer_by_layer(library: ctypes.CDLL) -> None:
    card = Card(library)
    here = {"slot": 9, "lane": 3, "position": 70, "token_count": 1}
    card.begin(handed(5, 2, 64, 130), here, handed(6, 0, 0, 64, last=0))
    card.run(0, 1)
    first, second = card.tables.look()
    assert (first.request, first.lane, first.position, first.count, first.last) == ((5, 3), 2, 64, 130, True)
    assert first.pages.tolist() == [20, 21, 22, 23]
    assert (second.request, second.position, second.last, second.pages.tolist()) == ((6, 3), 0, False, [0])
    assert (first.computed, first.over) == (0, False)
    assert card.tables.look() == []
    card.run(1, 4)
    assert card.tables.look() == [first, second]
    assert (first.computed, second.computed, first.over) == (3, 3, False)
    card.run(4)
    assert card.tables.look() == [first, second]
    assert (first.computed, first.over, second.over) == (LAYERS, True, True)
    assert card.tables.idle
    assert card.tables.look() == []


def test_tables_of_any_size_are_aligned(library: ctypes.CDLL) -> None:
    card = Card(library, lanes=1, lane_pages=5)
    assert tables_bytes(1, 5) % 64 == 0
    for _ in range(KEPT + 1):
        card.begin(handed(5, 0, 64, 130))
        card.run()
        (told,) = card.tables.look()
        assert (told.pages.tolist(), told.computed, told.over) == ([0, 1, 2, 3], LAYERS, True)


def test_a_step_with_nothing_for_others_tells_nothing(library: ctypes.CDLL) -> None:
    card = Card(library)
    for row in ({"slot": 1, "lane": 1, "token_count": 30, "sample": 1}, {**handed(5, 2, 0, 20), "token_count": 0}):
        card.begin(row)
        card.run()
        assert card.tables.look() == []


def test_steps_that_ended_before_anybody_looked_are_told(library: ctypes.CDLL) -> None:
    """The last ones; what is older goes by blocks."""
    card = Card(library)
    for slot in range(KEPT + 3):
        card.begin(handed(slot, 1, 0, 20))
        card.run()
    news = card.tables.look()
    assert [one.slot for one in news] == list(range(3, KEPT + 3))
    assert all(one.over and one.computed == LAYERS for one in news)


def test_a_step_that_is_written_over_is_over_as_far_as_it_was_seen(library: ctypes.CDLL) -> None:
    card = Card(library)
    card.begin(handed(40, 1, 0, 20))
    card.run(0, 3)
    (seen,) = card.tables.look()
    card.run(3)
    for slot in range(KEPT):
        card.begin(handed(slot, 1, 0, 20))
        card.run()
    news = card.tables.look()
    assert news[0] is seen
    assert (seen.computed, seen.over) == (2, True)
    assert [one.slot for one in news[1:]] == list(range(KEPT))


class Step(threading.Thread):
    def __init__(self, card: Card) -> None:
        super().__init__()
        self._card = card
        self.start()

    def run(self) -> None:
        self._card.run()


def reached(card: Card) -> int:
    """Layers that the newest step has computed."""
    card.tables.look()
    return max((one.computed for rows in card.tables._live.values() for _, one in rows), default=LAYERS)


def test_a_step_waits_for_each_layer(library: ctypes.CDLL) -> None:
    card = Card(library)
    card.layers.open(2)
    card.layers.raise_to(2, 1)
    card.begin(handed(5, 2, 64, 30), {"slot": 1, "lane": 1, "token_count": 30, "sample": 1})
    step = Step(card)
    wait_until(lambda: reached(card) == 1)
    card.layers.raise_to(2, 3)
    wait_until(lambda: reached(card) == 3)
    assert step.is_alive()
    card.layers.close(2, LAYERS)
    step.join(20)
    assert not step.is_alive()
    assert reached(card) == LAYERS
    assert (card.error[0], card.sequences["sample"][:2].tolist()) == (0, [1, 1])


@pytest.mark.parametrize("layer", [0, 2, LAYERS - 1])
def test_a_layer_that_fails_ends_the_wait_and_the_others_count(library: ctypes.CDLL, layer: int) -> None:
    card = Card(library)
    card.layers.raise_to(2, layer)
    card.begin(handed(5, 2, 64, 30), handed(6, 3, 0, 30))
    step = Step(card)
    wait_until(lambda: reached(card) == layer)
    lost, other = (one for rows in card.tables._live.values() for _, one in rows)
    card.layers.fail(2)
    step.join(20)
    assert not step.is_alive()
    card.tables.look()
    assert [(one.computed, one.over) for one in (lost, other)] == [(layer, True), (LAYERS, True)]
    assert (card.error[0], card.sequences["sample"][:2].tolist()) == (0, [0, 1])


def test_patience_ends_and_fails_the_step(library: ctypes.CDLL) -> None:
    card = Card(library, patience_s=0.05)
    card.layers.raise_to(2, 1)
    card.begin(handed(5, 2, 64, 30))
    card.run()
    assert card.error[0] == 1


def test_the_agent_hears_by_a_thread_and_leaves_nobody_waiting(library: ctypes.CDLL) -> None:
    card = Card(library)
    heard: list[Sequence[Pass]] = []
    card.layers.listen(heard.append)
    card.layers.attend(True)
    card.layers.raise_to(2, 2)
    card.begin(handed(5, 2, 64, 30))
    step = Step(card)
    wait_until(lambda: bool(heard) and heard[-1][0].computed == 2)
    card.layers.attend(False)
    card.layers.listen(None)
    step.join(20)
    assert not step.is_alive()
    assert card.sequences["sample"][0] == 0
    assert card.layers.word(2) == _scheduler.LAYERS_FAILED
