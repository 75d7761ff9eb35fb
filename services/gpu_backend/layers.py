"""Between a step and the KV agent, layer by layer (D6).

One way: a word of engine memory a lane (step.hpp's layers_ready), which the agent raises once a layer's bytes are in
the lane's pages, and which the step waits for before it attends in that layer. The other way: the step tells the agent
of each prompt for another engine that it computes a part of, and how many of its layers are computed.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.gpu_backend import _scheduler
from services.gpu_backend.engine import PAGE_TOKENS, EngineError, StepKind, StepView

LAYERS = 0xFFFFFFFF
LOOK_S = 0.5
"""The longest a waiting step goes without looking whether the agent has left."""


@dataclass(slots=True, eq=False)
class Pass:
    """A prompt, or chunk of one, in a step: positions [position, position + count).

    pages     u32: of positions [0, position + count)
    last      the prompt is computed whole with it
    computed  layers [0, computed) have the new tokens' KV in the pages
    over      the step has ended; with computed short of the model's layers this pass came to nothing
    """

    slot: int
    generation: int
    lane: int
    position: int
    count: int
    last: bool
    pages: NDArray[np.uint32] = field(repr=False)
    computed: int = 0
    over: bool = False

    @property
    def request(self) -> tuple[int, int]:
        return self.slot, self.generation

    @property
    def end(self) -> int:
        return self.position + self.count


Hear = Callable[[Sequence[Pass]], None]


class LayerCounters:
    """Verbs of the agent: listen, attend, open, raise_to, close, fail. Of an engine: step. For several threads.

    windowed  pages hold a few layers at a time (kv_layers_resident): every prompt of a step waits for each layer, and
              the agent says when, whether there is something to load or not
    """

    def __init__(self, memory: NDArray[np.uint8], offset: int, windowed: bool = False) -> None:
        self.windowed = windowed
        self._memory, self._offset = memory, offset
        self._raised = threading.Condition()
        self._hear: Hear | None = None

    # --- the agent's ---

    def listen(self, hear: Hear | None) -> None:
        """`hear` is called on the engine's thread with the passes of a step: when it begins, after each layer, and when
        it is over. None: the agent leaves, and what waits for it has waited in vain."""
        with self._raised:
            self._hear = hear
            self._raised.notify_all()

    def attend(self, under_way: bool) -> None:
        """Prompts are being handed over, or none is any more. News that come late cost time and nothing else: who has
        to look for them may look seldom while there are none."""

    def open(self, lane: int) -> None:
        """Layers will come. Until `close` or `fail` the lane is kept."""
        self._write(lane, _scheduler.LAYERS_OPEN)

    def raise_to(self, lane: int, layers: int) -> None:
        """The KV of layers [0, layers) is in the pages, more will come."""
        self._write(lane, _scheduler.LAYERS_OPEN | layers)

    def close(self, lane: int, layers: int) -> None:
        """So many are there, nothing is written any more."""
        self._write(lane, layers)

    def fail(self, lane: int) -> None:
        """No more will come, nothing is written any more."""
        self._write(lane, _scheduler.LAYERS_FAILED)

    # --- the engine's ---

    def step(self, view: StepView) -> "StepLayers":
        """For the step that begins. Raises EngineError where it could only compute nonsense."""
        if view.kind == StepKind.DECODE:
            if self.windowed:
                raise EngineError("step refused: its pages hold a few layers at a time, so it can only prefill")
            return NoLayers()
        rows = view.sequences[: view.sequence_count]
        rows = rows[rows["token_count"] > 0]
        for lane in rows["lane"][rows["hands_over"] == 0].tolist() if self.windowed else ():
            self.fail(lane)  # nobody would take its layers out of the window
        waits = [lane for lane in rows["lane"].tolist() if self.windowed or self.word(lane) & ~LAYERS]
        return StepLayers(self, [_pass(view, row) for row in rows[rows["hands_over"] != 0]], waits)

    def word(self, lane: int) -> int:
        return _ring.load_acquire_u64(self._memory, self._offset + 8 * lane)

    def there(self, lane: int, layer: int) -> bool:
        word = self.word(lane)
        if word & _scheduler.LAYERS_FAILED:
            return False
        return word & LAYERS > layer or not (self.windowed or word & _scheduler.LAYERS_OPEN)

    def wait(self, lane: int, layer: int) -> bool:
        """Returns when the layer is there; False if it won't be. It is the agent that keeps the deadline."""
        with self._raised:
            while not self.there(lane, layer):
                if self._hear is None:  # and so writes nothing any more
                    self.fail(lane)
                if self.word(lane) & _scheduler.LAYERS_FAILED:
                    return False
                self._raised.wait(LOOK_S)
        return True

    def tell(self, passes: Sequence[Pass]) -> None:
        with self._raised:
            if self._hear is not None:
                self._hear(passes)

    def forget(self, lane: int) -> None:
        """A windowed pass is over: the next one counts from 0 again."""
        if not self.word(lane) & ~LAYERS:
            self._write(lane, 0)

    def _write(self, lane: int, word: int) -> None:
        with self._raised:
            _ring.store_release_u64(self._memory, self._offset + 8 * lane, word)
            self._raised.notify_all()


def _pass(view: StepView, row: Any) -> Pass:
    slot, generation, lane, position, count, last = (
        int(row[name]) for name in ("slot", "generation", "lane", "position", "token_count", "sample")
    )
    pages = view.block_tables[lane, : -(-(position + count) // PAGE_TOKENS)].copy()
    return Pass(slot, generation, lane, position, count, bool(last), pages)


class StepLayers:
    """One step's side. Used by the one thread that computes it, as a context."""

    def __init__(self, counters: LayerCounters, passes: Sequence[Pass], waits: Sequence[int]) -> None:
        self._counters, self._passes = counters, passes
        self._waits = list(waits)
        self.lost: set[int] = set()
        """Lanes whose layers did not come: what is computed of them doesn't count, and nothing is sampled."""

    @property
    def idle(self) -> bool:
        """It waits for nothing and tells nobody."""
        return not (self._passes or self._waits)

    def begin(self, layer: int) -> bool:
        """Returns when the KV before every sequence's position is in the layer's pages, or lost; True if it waited."""
        waited = False
        for lane in self._waits:
            if not self._counters.there(lane, layer):
                waited = True
                if not self._counters.wait(lane, layer):
                    self.lost.add(lane)
        self._waits = [lane for lane in self._waits if lane not in self.lost]
        return waited

    def end(self, layer: int) -> None:
        """The new tokens' KV is in the layer's pages, and nobody reads others' there any more."""
        if self._passes:
            for one in self._passes:
                one.computed = one.computed if one.lane in self.lost else layer + 1
            self._counters.tell(self._passes)

    def __enter__(self) -> "StepLayers":
        if self._passes:
            self._counters.tell(self._passes)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._passes:
            one.over = True
            if self._counters.windowed:
                self._counters.forget(one.lane)
        if self._passes:
            self._counters.tell(self._passes)


class NoLayers(StepLayers):
    """For steps that wait for nothing and tell nobody."""

    def __init__(self) -> None:
        super().__init__(LayerCounters(np.zeros(0, np.uint8), 0), (), ())


def layers_of(view: StepView) -> StepLayers:
    """Of the step that an engine is about to compute. Raises EngineError where it could only compute nonsense."""
    return view.layers.step(view) if view.layers is not None else NoLayers()
