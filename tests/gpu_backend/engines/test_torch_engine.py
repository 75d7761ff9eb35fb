"""The torch engine around a tiny model: pages, padding, sampling, memory."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from services.fabric import _ring
from services.gpu_backend.engine import PAGE_TOKENS, STEP_SEQUENCE, EngineError, ModelGeometry, StepKind
from services.gpu_backend.engines.offline import Offline, Run, generate
from services.gpu_backend.engines.torch_engine import TorchEngine, TorchSettings
from services.gpu_backend.models.config import ModelConfig
from services.gpu_backend.models.llama import Llama
from services.gpu_backend.models.registry import LoadedModel

CONFIG = ModelConfig(
    architecture="llama", layers=3, hidden=32, intermediate=48, heads=4, kv_heads=2, head_dim=8, vocab=120,
    max_context=512, rms_epsilon=1e-5, rope_theta=1000.0,
)  # fmt: skip


class RandomWeights:
    """A WeightSource of seeded noise."""

    config = CONFIG

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(9)

    def has(self, name: str) -> bool:
        return name == "lm_head.weight"

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator) * 0.3


def make_engine(pages: int = 32, dtype: torch.dtype = torch.float32) -> TorchEngine:
    model = Llama(RandomWeights(), dtype, torch.device("cpu"), lambda name, elements: None)
    engine = TorchEngine(LoadedModel(model, "tiny"), TorchSettings())
    engine.allocate(pages, 8, 256)
    return engine


def random_runs(lengths: Sequence[int], tokens: int = 20) -> list[Run]:
    rng = np.random.default_rng(4)
    return [Run(rng.integers(0, 120, n).tolist(), tokens, 0.9, 0.95, 30, rng.random(tokens).tolist()) for n in lengths]


def test_layout_constants_match_the_ring() -> None:
    assert _ring.PAGE_TOKENS == PAGE_TOKENS
    assert STEP_SEQUENCE.itemsize == 48


def test_geometry_names_the_kv_layout() -> None:
    geometry = make_engine(1).geometry
    assert geometry.block_bytes == 3 * 2 * 64 * 2 * 8 * 4
    assert geometry.kv_layout == "tiny/float32/3x2x64x2x8"
    assert make_engine(1, torch.bfloat16).geometry.block_bytes == geometry.block_bytes // 2


@pytest.mark.parametrize("bad", [{"layers": 0}, {"dtype": "int3"}, {"max_context": -5}])
def test_geometry_refuses_nonsense(bad: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 2, "vocab": 9, "max_context": 64, "dtype": "float32",
        "identity": "x",
    }  # fmt: skip
    with pytest.raises(ValueError, match=f"{next(iter(bad))}.*{next(iter(bad.values()))}"):
        ModelGeometry(**{**fields, **bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copied_full_block_continues_elsewhere(dtype: torch.dtype) -> None:
    """Row p of kv_pages is all that page p holds: copied to another engine, decoding goes on alike."""
    first, second = make_engine(32, dtype), make_engine(32, dtype)
    source, target = Offline(first, 4), Offline(second, 4, np.random.default_rng(0).permutation(32))
    run = random_runs([150])[0]
    source.prefill(0, run, 64)
    moved = Run(run.prompt, 20, run.temperature, run.top_p, run.top_k, run.uniforms, computed=128)
    second.kv_pages[target.block_tables[2, :2]] = first.kv_pages[source.block_tables[0, :2]]
    target.step(StepKind.PREFILL, [(2, moved, 22)])
    for _ in source.decode([(0, run)]):
        pass
    for _ in target.decode([(2, moved)]):
        pass
    assert moved.output == run.output


@pytest.mark.parametrize("chunk", [1, 30, 256])
def test_prompts_and_decodes_may_share_steps(chunk: int) -> None:
    alone, mixed = random_runs([1, 70, 64, 129, 5]), random_runs([1, 70, 64, 129, 5])
    order = np.random.default_rng(1).permutation(40)
    assert generate(make_engine(40), alone, 256) == generate(make_engine(40), mixed, chunk, order, mixed=True)


def test_a_step_touches_its_own_places_only() -> None:
    engine = make_engine(32)
    engine.kv_pages[:] = np.arange(32, dtype=np.uint8)[:, None] % 60
    before = engine.kv_pages.copy()
    offline = Offline(engine, 4, np.random.default_rng(1).permutation(32))
    offline.prefill(1, random_runs([70])[0], 70)
    changed = np.flatnonzero((engine.kv_pages != before).any(axis=1))
    assert sorted(changed) == sorted(offline.block_tables[1, :2])
    block = engine.kv_pages[offline.block_tables[1, 1]].view(np.float32).reshape(3, 2, 64, 2, 8)
    old = before[offline.block_tables[1, 1]].view(np.float32).reshape(3, 2, 64, 2, 8)
    assert (block[:, :, 6:] == old[:, :, 6:]).all()
    assert (block[:, :, :6] != old[:, :, :6]).all()


def test_batches_and_chunks_do_not_change_what_is_drawn() -> None:
    lengths = (1, 63, 64, 65, 130, 17, 200, 90)
    together = generate(make_engine(64), random_runs(lengths), 200, np.random.default_rng(8).permutation(64))
    alone = [generate(make_engine(8), [run], 29)[0] for run in random_runs(lengths)]
    assert together == alone


def test_padding_and_unsampled_sequences_leave_out_tokens_alone() -> None:
    offline = Offline(make_engine(), 4)
    offline.out_tokens[:] = 777
    long, short = random_runs([50, 10])
    offline.step(StepKind.PREFILL, [(0, long, 20), (1, short, 10), (2, long, 0)])
    assert offline.out_tokens[[0, 2, 3]].tolist() == [777, 777, 777]
    assert offline.out_tokens[1] == short.output[0]
    offline.step(StepKind.DECODE, [(2, long, 0)])


def test_more_pages_than_memory_are_refused_with_figures() -> None:
    engine = make_engine()
    with pytest.raises(
        EngineError, match=r"KV pages of 24576 bytes are \d+ bytes, but \d+ are available beside .*: at most \d+"
    ):
        engine.allocate(1 << 40, 8, 256)


def test_a_broken_page_is_reported_by_slot() -> None:
    engine = make_engine()
    offline = Offline(engine, 4)
    run = random_runs([70])[0]
    offline.prefill(3, run, 70)
    engine.kv_pages[offline.block_tables[3, 0]] = 0xFF
    with pytest.raises(EngineError, match="slot 3: the model's logits are not finite"):
        offline.step(StepKind.DECODE, [(3, run, 1)])


def test_closing_gives_pages_back() -> None:
    engine = make_engine()
    engine.close()
    engine.close()
    assert len(engine.kv_pages) == 0
