"""An engine without a model: a known token sequence at a set rate, to load everything around it.

The token at position p is words[p % len(words)], or, if `contextual`, chosen by a hash of all tokens
before it that is read from the KV pages: equal outputs then mean equal KV. Steps take as long as those of
a given model; without one a decode step takes 1 / decode_rate seconds whatever its batch, a prefill step its
tokens / prefill_rate. KV pages are real, as large as the model's, or tiny: in each layer K begins with the
token, V with a running hash of all tokens up to it, so that a page from anywhere else is found out when verified.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.engine import PAGE_TOKENS, EngineError, ModelGeometry, StepKind, StepView, resident_layers
from services.gpu_backend.engines.host_memory import available_bytes
from services.gpu_backend.engines.kv_chain import ChainPowers, Uint32s, chain
from services.gpu_backend.engines.synthetic_model import DecodeCost, PrefillCost, SyntheticModel
from services.gpu_backend.layers import StepLayers, layers_of


@dataclass(frozen=True)
class SyntheticSettings:
    """words: ids that the output cycles through. Rates are tokens/s, and for want of a model; decode_rate is each
    sequence's.

    resident_layers: that a page holds at a time; 0: all (LayeredEngine).

    contextual: the output depends on every token before it, through the KV. verify: every step first checks
    the KV of all earlier positions, at a cost in proportion.
    """

    words: tuple[int, ...]
    vocab: int
    max_context: int = 8192
    decode_rate: float = 100.0
    prefill_rate: float = 20000.0
    model: SyntheticModel | None = None
    resident_layers: int = 0
    contextual: bool = False
    verify: bool = False

    def __post_init__(self) -> None:
        if not self.words or max(self.words) >= self.vocab or min(self.words) < 0:
            raise ValueError(f"words must be one or more ids within the vocabulary of {self.vocab}")
        if not self.decode_rate > 0 or not self.prefill_rate > 0:
            raise ValueError(f"decode_rate {self.decode_rate}, prefill_rate {self.prefill_rate}: must be > 0")

    @property
    def shape(self) -> SyntheticModel:
        """The model, or the smallest one with these rates."""
        prefill = PrefillCost(engine_token_s=1 / self.prefill_rate)
        return self.model or SyntheticModel(1, 1, prefill, DecodeCost(step_s=1 / self.decode_rate))


class Pace:
    """Waits so that steps end at their due times: a late end shortens the next wait, so rates don't drift.

    After an idle time the clock starts anew.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._due = float("-inf")

    def restart(self) -> None:
        """What comes next begins now, not when the last one was due."""
        self._due = float("-inf")

    def spend(self, seconds: float) -> None:
        now = self._clock()
        begin = self._due if now - self._due < seconds else now
        self._due = begin + seconds
        if self._due > now:
            self._sleep(self._due - now)


class SyntheticEngine:
    """An `Engine` whose steps cost a few numpy operations."""

    def __init__(self, settings: SyntheticSettings, pace: Pace | None = None) -> None:
        self._settings = settings
        self._model = model = settings.shape
        self._words = np.array(settings.words, np.uint32)
        self._geometry = ModelGeometry(
            layers=model.layers, heads=1, kv_heads=1, head_dim=model.width, dtype="uint32", identity="synthetic",
            vocab=settings.vocab, max_context=settings.max_context,
        )  # fmt: skip
        self._closing = threading.Event()
        self._pace = pace or Pace(sleep=self._closing.wait)
        self._resident = resident_layers(settings.resident_layers, self._geometry)
        self._powers = ChainPowers(settings.max_context)
        self._kv = np.zeros((0, *self._page_shape), np.uint32)

    @property
    def geometry(self) -> ModelGeometry:
        return self._geometry

    @property
    def resident_layers(self) -> int:
        return self._resident

    @property
    def kv_pages(self) -> NDArray[np.uint8]:
        return self._kv.reshape(len(self._kv), -1).view(np.uint8)

    def allocate(self, pages: int, lanes: int, step_tokens: int) -> None:
        needed, room = pages * self._resident * self._geometry.layer_bytes, available_bytes()
        if needed > room:
            raise EngineError(f"{pages} KV pages need {needed} bytes; {room} are available")
        self._kv = np.zeros((pages, *self._page_shape), np.uint32)

    def step(self, view: StepView) -> None:
        if self._closing.is_set():
            raise EngineError("step refused: the engine is closed")
        rows = view.sequences[: view.sequence_count]
        ends = rows["position"].astype(np.int64) + rows["token_count"]
        if len(rows) and ends.max() > self._settings.max_context:
            raise EngineError(f"step refused: position {ends.max()} is past {self._settings.max_context}")
        active = rows["token_count"] > 0
        seconds = self._seconds(view.kind, rows[active]) if active.any() else 0.0
        with layers_of(view) as layers:
            if layers.idle:
                self._compute(view, active, slice(None))
                self._pace.spend(seconds)
            else:
                active = self._compute_by_layers(view, active, layers, seconds)
        sampled = np.flatnonzero((rows["sample"] != 0) & active)
        last = (self._model.layers - 1) % self._resident
        choice = self._hashes(view, sampled, ends[sampled] - 1, last) if self._settings.contextual else ends[sampled]
        view.out_tokens[sampled] = self._words[choice % len(self._words)]

    def close(self) -> None:
        self._closing.set()

    def _compute_by_layers(
        self, view: StepView, active: NDArray[np.bool_], layers: StepLayers, seconds: float
    ) -> NDArray[np.bool_]:
        """Each layer takes its part of the time, from when its KV is there. Returns who is not lost."""
        lanes = view.sequences["lane"][: view.sequence_count]
        for layer in range(self._model.layers):
            if layers.begin(layer):
                self._pace.restart()
            active = active & ~np.isin(lanes, list(layers.lost))
            place = layer % self._resident
            self._compute(view, active, slice(place, place + 1), layer)
            self._pace.spend(seconds / self._model.layers)
            layers.end(layer)
        return active

    def _compute(self, view: StepView, active: NDArray[np.bool_], places: slice, layer: int | None = None) -> None:
        """The new tokens' KV in these places of their pages: in one of `layer`, or, without, in those of all."""
        counts = view.sequences["token_count"][: view.sequence_count] * active
        if self._settings.verify:
            for i in np.flatnonzero(active):
                self._verify(view, int(i), places, layer)
        self._write_singles(view, np.flatnonzero(counts == 1), places)
        for i in np.flatnonzero(counts > 1):
            self._write_chunk(view, int(i), places)

    @property
    def _page_shape(self) -> tuple[int, int, int, int]:
        """Layers, K and V, tokens, words."""
        return (self._resident, 2, PAGE_TOKENS, self._model.width)

    def _seconds(self, kind: StepKind, rows: NDArray[Any]) -> float:
        """What the step would take. In a prefill step rows of one token behind the first are decodes."""
        decodes = rows if kind == StepKind.DECODE else rows[1:][rows["token_count"][1:] == 1]
        decode = self._model.decode.seconds(len(decodes), int(decodes["position"].sum()) + len(decodes))
        if kind == StepKind.DECODE:
            return decode
        chunks = zip(rows["position"].tolist(), rows["token_count"].tolist(), strict=True)
        prefill = self._model.prefill.seconds(list(chunks))
        return max(prefill, decode) if len(decodes) else prefill

    def _hashes(
        self, view: StepView, index: NDArray[np.intp], positions: NDArray[np.int64], place: int
    ) -> NDArray[np.uint32]:
        """V of one position of each sequence in `index`, in the layer that has this place."""
        pages = view.block_tables[view.sequences["lane"][index], positions // PAGE_TOKENS]
        hashes: NDArray[np.uint32] = self._kv[pages, place, 1, positions % PAGE_TOKENS, 0]
        return hashes

    def _write_singles(self, view: StepView, index: NDArray[np.intp], places: slice) -> None:
        rows = view.sequences[index]
        lanes, positions = rows["lane"], rows["position"].astype(np.int64)
        tokens = view.tokens[rows["token_begin"]]
        previous = self._hashes(view, index, np.maximum(positions - 1, 0), places.start or 0)
        pages, offsets = view.block_tables[lanes, positions // PAGE_TOKENS], positions % PAGE_TOKENS
        self._write(places, pages, offsets, tokens, self._powers.next(np.where(positions > 0, previous, 0), tokens))

    def _write_chunk(self, view: StepView, index: int, places: slice) -> None:
        row = view.sequences[index]
        begin, count, position = (int(row[name]) for name in ("token_begin", "token_count", "position"))
        table = view.block_tables[row["lane"]]
        tokens = view.tokens[begin : begin + count]
        before = self._hashes(view, np.array([index]), np.array([max(position - 1, 0)]), places.start or 0)
        previous = int(before[0]) if position else 0
        positions = np.arange(position, position + count)
        pages, offsets = table[positions // PAGE_TOKENS], positions % PAGE_TOKENS
        self._write(places, pages, offsets, tokens, chain(previous, tokens, self._powers))

    def _write(
        self, places: slice, pages: NDArray[Any], offsets: NDArray[np.int64], tokens: Uint32s, hashes: Uint32s
    ) -> None:
        self._kv[pages, places, 0, offsets, 0] = tokens[:, None]
        self._kv[pages, places, 1, offsets, 0] = hashes[:, None]

    def _verify(self, view: StepView, index: int, places: slice, layer: int | None) -> None:
        row = view.sequences[index]
        position = int(row["position"])
        pages = view.block_tables[row["lane"], : (position + PAGE_TOKENS - 1) // PAGE_TOKENS]
        expected = chain(0, self._kv[pages, places.start or 0, 0, :, 0].reshape(-1)[:position], self._powers)
        for place in range(self._resident)[places]:
            wrong = np.flatnonzero(self._kv[pages, place, 1, :, 0].reshape(-1)[:position] != expected)
            if len(wrong):
                at, found = int(wrong[0]), place if layer is None else layer
                raise EngineError(
                    f"slot {row['slot']}, lane {row['lane']}: KV at position {at} (page {pages[at // PAGE_TOKENS]}) "
                    f"of layer {found} does not follow from the {at} tokens before it: a wrong or stale page"
                )
