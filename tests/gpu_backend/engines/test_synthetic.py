"""The synthetic engine: known text, exact pace, KV that tells where it came from."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpu_backend.engine import EngineError, StepKind, StepView
from services.gpu_backend.engines.kv_chain import ChainPowers, chain
from services.gpu_backend.engines.offline import Offline, Run, generate
from services.gpu_backend.engines.synthetic import Pace, SyntheticEngine, SyntheticSettings
from services.gpu_backend.engines.synthetic_model import DecodeCost, PrefillCost, SyntheticModel
from services.gpu_backend.layers import LayerCounters, Pass

WORDS = (11, 12, 13, 14, 15)


class Clock:
    """Time that passes only by sleeping, or when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def make_engine(clock: Clock | None = None, **settings: object) -> SyntheticEngine:
    clock = clock or Clock()
    engine = SyntheticEngine(
        SyntheticSettings(words=WORDS, vocab=100, **settings),  # type: ignore[arg-type]
        Pace(lambda: clock.now, clock.sleep),
    )
    engine.allocate(48, 4, 256)
    return engine


def test_tokens_follow_positions() -> None:
    runs = [Run(list(range(n)), 70) for n in (1, 63, 64, 65)]
    outputs = generate(make_engine(verify=True), runs, 40, np.random.default_rng(0).permutation(48))
    assert outputs == [[WORDS[(len(run.prompt) + i) % 5] for i in range(70)] for run in runs]


def test_contextual_output_depends_on_every_prompt_token_and_on_nothing_else() -> None:
    prompt = [5] * 150
    changed = [*prompt[:3], 6, *prompt[4:]]
    generated = [
        generate(
            make_engine(contextual=True), [Run(p, 60), Run([i], 9)], chunk, np.random.default_rng(i).permutation(48)
        )
        for i, (p, chunk) in enumerate([(prompt, 150), (prompt, 7), (changed, 150)])
    ]
    assert generated[0][0] == generated[1][0] != generated[2][0]


def test_prompts_and_decodes_may_share_steps() -> None:
    def runs() -> list[Run]:
        return [Run([n] * n, 40) for n in (30, 63, 64, 150)]

    alone = generate(make_engine(contextual=True), runs(), 200)
    for chunk in (1, 13, 200):
        assert generate(make_engine(contextual=True, verify=True), runs(), chunk, mixed=True) == alone


def test_one_token_chunks_and_long_chunks_write_the_same_kv() -> None:
    pages = []
    for chunk in (1, 13, 200):
        engine = make_engine()
        generate(engine, [Run(list(range(90)), 3)], chunk)
        pages.append(engine.kv_pages.copy())
    assert (pages[0] == pages[1]).all()
    assert (pages[0] == pages[2]).all()


def test_a_page_copied_with_its_prefix_goes_on_and_a_foreign_page_is_found_out() -> None:
    engine = make_engine(verify=True)
    offline = Offline(engine, 4)
    first, second = Run(list(range(130)), 4), Run(list(range(130)), 4)
    offline.prefill(0, first, 64)
    source, target = offline.block_tables[0], offline.block_tables[1]
    engine.kv_pages[target[:2]] = engine.kv_pages[source[:2]]
    second.computed = 128
    offline.step(StepKind.PREFILL, [(1, second, 2)])
    offline.step(StepKind.DECODE, [(1, second, 1)])
    engine.kv_pages[target[1]] = engine.kv_pages[source[0]]
    with pytest.raises(EngineError, match=r"lane 1: KV at position 64 \(page \d+\) .* wrong or stale"):
        offline.step(StepKind.DECODE, [(1, second, 1)])


def test_pages_never_written_are_found_out() -> None:
    offline = Offline(make_engine(verify=True), 4)
    run = Run(list(range(130)), 4)
    run.computed = 128
    with pytest.raises(EngineError, match="position 0"):
        offline.step(StepKind.PREFILL, [(1, run, 2)])


def test_decoding_keeps_its_rate_though_sleeps_are_late() -> None:
    clock = Clock()
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds + 0.004)  # type: ignore[method-assign]
    offline = Offline(make_engine(clock, decode_rate=100), 4)
    run = Run([1], 200)
    offline.prefill(0, run, 1)
    started = clock.now
    assert sum(1 for _ in offline.decode([(0, run)])) == 199
    assert clock.now - started == pytest.approx(1.99, abs=0.02)


def test_idle_time_is_not_caught_up() -> None:
    clock = Clock()
    pace = Pace(lambda: clock.now, clock.sleep)
    pace.spend(0.01)
    clock.now += 5
    pace.spend(0.01)
    assert clock.now == pytest.approx(105.02)


def test_prefill_takes_time_by_its_tokens() -> None:
    clock = Clock()
    Offline(make_engine(clock, prefill_rate=1000), 4).prefill(0, Run([1] * 300, 1), 50)
    assert clock.now == pytest.approx(100.3)


def test_a_closed_engine_refuses_and_past_the_context_too() -> None:
    engine = make_engine(max_context=100)
    offline = Offline(engine, 4)
    with pytest.raises(EngineError, match="position 101 is past 100"):
        offline.prefill(0, Run([1] * 101, 1), 101)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        offline.prefill(0, Run([1], 1), 1)


@pytest.mark.parametrize("bad", [{"words": ()}, {"words": (100,)}, {"decode_rate": 0}, {"prefill_rate": -1}])
def test_bad_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        SyntheticSettings(**{"words": WORDS, "vocab": 100, **bad})  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300), st.integers(0, 2**32 - 1))
def test_chain_at_once_equals_chain_by_steps(tokens: list[int], start: int) -> None:
    powers = ChainPowers(300)
    array = np.array(tokens, np.uint32)
    value, expected = np.array([start], np.uint32), []
    for token in array:
        value = powers.next(value, np.array([token]))
        expected.append(int(value[0]))
    assert chain(start, array, powers).tolist() == expected


def test_a_wrong_page_is_told_with_its_layer_where_a_place_holds_one_after_the_other() -> None:
    engine = make_engine(verify=True, model=SyntheticModel(5, 1, PrefillCost(), DecodeCost()), resident_layers=2)
    run, lane = Run(list(range(130)), 4), 1
    Offline(engine, 4).step(StepKind.PREFILL, [(lane, run, 64)])
    counters = LayerCounters(np.zeros(8 * 4, np.uint8), 0, windowed=True)
    counters.raise_to(lane, 5)

    def hear(passes: Sequence[Pass]) -> None:
        if passes[0].computed == 3:
            engine._kv[:, 3 % 2, 1] += 1

    class ByLayers:
        kv_pages = engine.kv_pages

        def step(self, view: StepView) -> None:
            view.sequences["hands_over"] = 1
            engine.step(replace(view, layers=counters))

    counters.listen(hear)
    with pytest.raises(EngineError, match="of layer 3 does not follow"):
        Offline(ByLayers(), 4).step(StepKind.PREFILL, [(lane, run, 66)])  # type: ignore[arg-type]
