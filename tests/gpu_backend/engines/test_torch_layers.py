"""The torch engine layer by layer (D6), against itself with all KV in place before the step: tokens and KV bytes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.gpu_backend.engine import PAGE_TOKENS, EngineError, StepKind, StepView
from services.gpu_backend.engines.offline import Offline, Run
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.layers import LayerCounters, Pass
from services.gpu_backend.models.registry import LoadedModel
from tests.gpu_backend.engines.test_torch_engine import CONFIG, make_engine, random_runs

LAYERS, LANE = CONFIG.layers, 1
FULL = make_engine(32)


class Agent:
    """Brings a layer in only when the step can't go on without it, and takes each out as soon as it is computed.

    host: u8[blocks, layers, layer_bytes], the prompt's KV. With a window the pages hold no more than that.
    """

    def __init__(self, engine: TorchEngine, host: NDArray[np.uint8], fails_at: int | None = None) -> None:
        self.resident, self.host, self._fails_at = engine.resident_layers, host, fails_at
        self.windowed = self.resident < LAYERS
        self.counters = LayerCounters(np.zeros(8 * 4, np.uint8), 0, self.windowed)
        self.counters.listen(self._hear)
        self._engine, self._pages = engine, engine.kv_pages.reshape(len(engine.kv_pages), self.resident, -1)

    @property
    def kv_pages(self) -> NDArray[np.uint8]:
        return self._engine.kv_pages

    def step(self, view: StepView) -> None:
        """The engine's, for the front of it that tests drive."""
        view.sequences["hands_over"] = 1
        if int(view.sequences["position"][0]):
            self.counters.open(LANE)
        self._engine.step(replace(view, layers=self.counters))

    def _hear(self, passes: Sequence[Pass]) -> None:
        [one] = passes
        if one.computed:
            blocks = slice(0, len(one.pages))
            layer = one.computed - 1
            self.host[blocks, layer] = self._pages[one.pages, layer % self.resident]
        if not one.over and one.computed < LAYERS:
            self._bring(one, one.computed)

    def _bring(self, one: Pass, layer: int) -> None:
        if layer == self._fails_at:
            self.counters.fail(one.lane)
            return
        blocks = -(-one.position // PAGE_TOKENS)
        self._pages[one.pages[:blocks], layer % self.resident] = self.host[:blocks, layer]
        last = layer == LAYERS - 1
        self.counters.close(one.lane, LAYERS) if last else self.counters.raise_to(one.lane, layer + 1)


def engine_of(resident: int) -> TorchEngine:
    engine = TorchEngine(LoadedModel(FULL._model, "tiny"), TorchSettings(resident_layers=resident))
    engine.allocate(32, 8, 512)
    return engine


def prefill(engine: TorchEngine | Agent, run: Run, chunk: int) -> Offline:
    offline = Offline(engine, 4, np.random.default_rng(2).permutation(32))  # type: ignore[arg-type]
    while run.computed < len(run.prompt):
        offline.step(StepKind.PREFILL, [(LANE, run, min(chunk, len(run.prompt) - run.computed))])
    return offline


def kv_of(offline: Offline, engine: TorchEngine, blocks: int) -> NDArray[np.uint8]:
    return engine.kv_pages[offline.block_tables[LANE, :blocks]].reshape(blocks, LAYERS, -1).copy()


@settings(max_examples=30, deadline=None)
@given(
    length=st.sampled_from([1, 63, 64, 65, 127, 128, 129, 192, 193, 257, 300]),
    chunk=st.sampled_from([40, 64, 512]),
    resident=st.integers(1, LAYERS),
    data=st.data(),
)
def test_tokens_and_kv_are_those_of_the_slow_way(length: int, chunk: int, resident: int, data: st.DataObject) -> None:
    hit, blocks = data.draw(st.integers(0, (length - 1) // 64)), -(-length // 64)
    [whole, slow, layered] = (random_runs([length])[0] for _ in range(3))
    stored = kv_of(prefill(FULL, whole, 512), FULL, blocks)

    offline = Offline(FULL, 4, np.random.default_rng(2).permutation(32))
    FULL.kv_pages[offline.block_tables[LANE, :hit]] = stored[:hit].reshape(hit, FULL.geometry.block_bytes)
    slow.computed = layered.computed = 64 * hit
    expected = kv_of(prefill(FULL, slow, chunk), FULL, blocks)

    host = np.zeros_like(stored)
    host[:hit] = stored[:hit]
    agent = Agent(engine_of(resident), host)
    prefill(agent, layered, chunk)
    assert layered.output == slow.output
    assert np.array_equal(by_token(host)[:, :length], by_token(expected)[:, :length])


def by_token(kv: NDArray[np.uint8]) -> NDArray[np.float32]:
    """float32[layers, tokens, K and V] of u8[blocks, layers, layer_bytes]."""
    found = kv.view(np.float32).reshape(len(kv), LAYERS, 2, PAGE_TOKENS, -1)
    return found.transpose(1, 0, 3, 2, 4).reshape(LAYERS, len(kv) * PAGE_TOKENS, -1)


@pytest.mark.parametrize("resident", [2, LAYERS])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_nothing_is_sampled_of_a_prompt_whose_layer_does_not_come(layer: int, resident: int) -> None:
    agent = Agent(engine_of(resident), np.zeros((3, LAYERS, FULL.geometry.layer_bytes), np.uint8), fails_at=layer)
    run = random_runs([150])[0]
    run.computed = 128
    offline = Offline(agent, 4, np.arange(32))  # type: ignore[arg-type]
    offline.out_tokens[:] = 777
    offline.step(StepKind.PREFILL, [(LANE, run, 22)])
    assert offline.out_tokens[0] == 777


def test_a_window_does_not_decode_and_is_no_larger_than_the_model() -> None:
    agent = Agent(engine_of(1), np.zeros((3, LAYERS, FULL.geometry.layer_bytes), np.uint8))
    with pytest.raises(EngineError, match="only prefill"):
        Offline(agent, 4).step(StepKind.DECODE, [(LANE, random_runs([5])[0], 1)])  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="4 layers are to be resident, the model has 3"):
        engine_of(4)
