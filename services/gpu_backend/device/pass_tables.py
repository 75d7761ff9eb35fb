"""Passes (layers.py) that steps on a GPU tell of: tables in host memory, which the steps write and the host reads.

The layout is that of engines/cuda/kernels/layer_gate.cuh.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.layers import Pass

KEPT = 8
"""Tables that stay readable."""
HEAD_BYTES = 64
TABLE: np.dtype[np.void] = np.dtype(
    {"names": ["number", "rows", "computed", "over"], "formats": ["<u8", "<u4", "<u4", "<u4"],
     "offsets": [0, 8, 12, 16], "itemsize": 64}
)  # fmt: skip
ROW: np.dtype[np.void] = np.dtype(
    [(name, "<u4") for name in ("slot", "generation", "lane", "position", "count", "last", "lost", "pad")]
)


def tables_bytes(lanes: int, lane_pages: int) -> int:
    return HEAD_BYTES + KEPT * _table_bytes(lanes, lane_pages)


def _table_bytes(lanes: int, lane_pages: int) -> int:
    return -(-(TABLE.itemsize + lanes * (ROW.itemsize + 4 * lane_pages)) // 64) * 64


class PassTables:
    """For one thread. A table is read while its step goes on; if a later step has written over it before its end was
    seen, its passes are over as far as they were seen."""

    def __init__(self, memory: NDArray[np.uint8], lanes: int, lane_pages: int) -> None:
        """memory: u8[tables_bytes], 64-byte aligned."""
        self._memory, self._lanes, self._lane_pages = memory, lanes, lane_pages
        self._next = 1
        self._live: dict[int, list[tuple[int, Pass]]] = {}  # (row, pass) by the table's number

    @property
    def idle(self) -> bool:
        """No step that is known goes on."""
        return not self._live

    def look(self) -> list[Pass]:
        """Passes that have begun, come further or ended since the last look."""
        news = [one for number in list(self._live) for one in self._follow(number)]
        begun = _ring.load_acquire_u64(self._memory, 0)
        for number in range(max(self._next, begun - KEPT + 1), begun + 1):
            if rows := self._read(number):
                self._live[number] = rows
                news += [one for _, one in rows]
                list(self._follow(number))
        self._next = begun + 1
        return news

    def _read(self, number: int) -> list[tuple[int, Pass]]:
        """Empty if it is written over already."""
        at = self._at(number)
        if _ring.load_acquire_u64(self._memory, at) != number:
            return []
        rows = self._rows(at)[: int(self._table(at)["rows"])].copy()
        found = [(i, self._pass(rows[i], self._pages(at, i))) for i in np.flatnonzero(rows["count"]).tolist()]
        return found if _ring.load_acquire_u64(self._memory, at) == number else []

    def _follow(self, number: int) -> Iterator[Pass]:
        """Those whose state has changed."""
        at, passes = self._at(number), self._live[number]
        table = self._table(at)
        over = bool(table["over"])  # before what it stands behind
        computed = int(_ring.load_acquire_u64(self._memory, at + 8) >> 32)
        lost = self._rows(at)["lost"].copy()
        if gone := _ring.load_acquire_u64(self._memory, at) != number:
            over = True
        for row, one in passes:
            now = one.computed if gone else max(one.computed, min(computed, int(lost[row])))
            if now != one.computed or over:
                one.computed, one.over = now, over
                yield one
        if over:
            del self._live[number]

    def _pass(self, row: np.void, pages: NDArray[np.uint32]) -> Pass:
        slot, generation, lane, position, count, last = (int(row[name]) for name in ROW.names[:6])  # type: ignore[index]
        many = -(-(position + count) // PAGE_TOKENS)
        return Pass(slot, generation, lane, position, count, bool(last), pages[:many].copy())

    def _at(self, number: int) -> int:
        return HEAD_BYTES + number % KEPT * _table_bytes(self._lanes, self._lane_pages)

    def _table(self, at: int) -> np.void:
        table: np.void = self._memory[at : at + TABLE.itemsize].view(TABLE)[0]
        return table

    def _rows(self, at: int) -> NDArray[np.void]:
        begin = at + TABLE.itemsize
        return self._memory[begin : begin + self._lanes * ROW.itemsize].view(ROW)

    def _pages(self, at: int, row: int) -> NDArray[np.uint32]:
        begin = at + TABLE.itemsize + self._lanes * ROW.itemsize + 4 * row * self._lane_pages
        return self._memory[begin : begin + 4 * self._lane_pages].view(np.uint32)
