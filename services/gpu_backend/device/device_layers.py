"""Layer counters of steps on a GPU (D6). No host code takes part in a step, so the agent's side looks for news."""

import threading

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend import _scheduler
from services.gpu_backend.device.pass_tables import PassTables
from services.gpu_backend.layers import Hear, LayerCounters

BUSY_S, IDLE_S = 1e-4, 5e-3
"""Between two looks, while prompts are handed over and while none is."""
END_S = 5.0


class DeviceLayers(LayerCounters):
    """The agent's verbs. Steps read the words where they lie, and write the tables, which a thread of this object reads
    from `listen(hear)` to `listen(None)`. Then another may listen."""

    def __init__(self, memory: NDArray[np.uint8], offset: int, lanes: int, tables: PassTables) -> None:
        """memory, offset: of layers_ready, u64[lanes], which the GPU maps."""
        super().__init__(memory, offset)
        self._lanes, self._tables = lanes, tables
        self._under_way, self._leaves = threading.Event(), threading.Event()
        self._watching: threading.Thread | None = None

    def attend(self, under_way: bool) -> None:
        self._under_way.set() if under_way else self._under_way.clear()

    def listen(self, hear: Hear | None) -> None:
        super().listen(hear)
        if hear is not None:
            assert self._watching is None, "one listens at a time"
            self._leaves.clear()
            self._under_way.clear()
            self._watching = threading.Thread(target=self._watch, name="kv-layers", daemon=True)
            self._watching.start()
            return
        self._leaves.set()
        self._under_way.set()
        if self._watching is not None:
            self._watching.join(END_S)
            if not self._watching.is_alive():
                self._watching = None
        for lane in range(self._lanes):  # nobody brings what steps wait for
            if self.word(lane) & _scheduler.LAYERS_OPEN:
                self.fail(lane)

    def _watch(self) -> None:
        while not self._leaves.is_set():
            if news := self._tables.look():
                self.tell(news)
            if self._under_way.is_set():
                self._leaves.wait(BUSY_S)
            elif self._tables.idle:
                self._under_way.wait(IDLE_S)
            else:
                self._leaves.wait(BUSY_S)
