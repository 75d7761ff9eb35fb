"""bfloat16 numbers, padding and poison, device-side sampling, and that graphs can be launched from the device."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cuda.bindings import driver

import tests.gpu.engine.hardware  # noqa: F401
from services.gpu_backend.engine import STEP_SEQUENCE, EngineError, StepKind, StepView
from services.gpu_backend.engines.cuda.engine import CudaGraphEngine
from services.gpu_backend.engines.cuda.host_driven import HostDrivenGraphEngine
from services.gpu_backend.engines.cuda.memory_views import tensors_of
from services.gpu_backend.engines.cuda.settings import CudaSettings
from services.gpu_backend.engines.paged_attention import GatherBuffer, PagedAttention
from services.gpu_backend.engines.plan import plan_step
from services.gpu_backend.engines.sampling import draw
from services.gpu_backend.models.llama import Llama
from tests.gpu.engine.small_models import Driver, random_model, small_config

pytestmark = pytest.mark.gpu
LANES, STEP_TOKENS, PAGES, CONTEXT = 32, 512, 400, 4096
VARIANTS = {
    "cublas": CudaSettings(skinny_rows=0, overlap_launches=False, singles="tiles"),
    "skinny": CudaSettings(skinny_rows=8, overlap_launches=False, singles="beside"),
    "overlapped": CudaSettings(skinny_rows=8, overlap_launches=True, singles="beside"),
}
Rows = list[tuple[int, int, list[int], int]]


@pytest.fixture(scope="module")
def model() -> Llama:
    return random_model(small_config(hidden=1024, intermediate=9216, head_dim=128), torch.bfloat16, "cuda")


@pytest.fixture(scope="module", params=VARIANTS)
def engine(request: pytest.FixtureRequest, model: Llama) -> Iterator[tuple[CudaGraphEngine, HostDrivenGraphEngine]]:
    graphs = CudaGraphEngine(model, "t", VARIANTS[request.param])
    driven = HostDrivenGraphEngine(graphs, CONTEXT)
    driven.allocate(PAGES, LANES, STEP_TOKENS)
    yield graphs, driven
    driven.close()


class Reference:
    """The same steps through models/llama.py in float32 on the device, with the engine's bfloat16 weights."""

    def __init__(self, model: Llama) -> None:
        def wide(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.float()

        self.model = Llama.__new__(Llama)
        self.model.config, self.model.dtype, self.model.device = model.config, torch.float32, model.device
        self.model.embedding, self.model.norm, self.model.head = map(wide, (model.embedding, model.norm, model.head))
        self.model.layers = [
            type(layer)(**{name: wide(each) for name, each in vars(layer).items() if each is not None})
            for layer in model.layers
        ]
        self.model.frequencies = model.frequencies
        config = model.config
        self.pool = torch.zeros((PAGES, config.layers, 2, 64, config.kv_heads, config.head_dim), device="cuda")

    @torch.inference_mode()
    def step(self, view: StepView, geometry: Any) -> torch.Tensor:
        """float32[samples, vocab], in the order of sampled sequences."""
        plan = plan_step(view, geometry, PAGES)
        with torch.device("cuda"):
            attention = _on_device(self.pool, plan)
            hidden = self.model.forward(
                torch.from_numpy(plan.tokens).cuda(), torch.from_numpy(plan.positions).cuda(), attention
            )
            rows = plan.sampled_rows[np.argsort(plan.sampled_sequences)]
            return self.model.logits(hidden[torch.from_numpy(rows).cuda()])


def _on_device(pool: torch.Tensor, plan: Any) -> PagedAttention:
    """PagedAttention prepares its indices on the CPU; moves them."""
    attention = PagedAttention(pool, GatherBuffer.like(pool), plan)
    attention._write_pages, attention._write_offsets = attention._write_pages.cuda(), attention._write_offsets.cuda()

    def moved(part: Any) -> Any:
        mask = part.mask if part.mask is None else part.mask.cuda()
        return type(part)(**{**vars(part), "pages": part.pages.cuda(), "mask": mask})

    attention._singles, attention._chunks = list(map(moved, attention._singles)), list(map(moved, attention._chunks))
    return attention


def view_of(kind: StepKind, rows: Rows, tables: Any) -> StepView:
    sequences = np.zeros(len(rows), STEP_SEQUENCE)
    tokens: list[int] = []
    for at, (lane, position, new, sample) in zip(sequences, rows, strict=True):
        at["lane"], at["position"], at["token_count"], at["sample"] = lane, position, len(new), sample
        at["token_begin"], at["slot"], at["top_p"] = len(tokens), lane, 1.0
        tokens.extend(new)
    out = np.full(len(rows), 0xDEAD, np.uint32)
    return StepView(kind, len(rows), len(tokens), sequences, np.asarray(tokens, np.uint32), tables, out)


def steps(count: int) -> list[tuple[StepKind, Rows]]:
    """Prompts of `count` sequences in two chunks, then three decode steps; then all but the first decode behind more
    tokens of that one."""
    rng = np.random.default_rng(count)
    lengths = [int(n) for n in rng.integers(1, min(900, 9000 // count), count)]
    prompts = [[int(t) for t in rng.integers(0, 4096, n)] for n in lengths]
    made: list[tuple[StepKind, Rows]] = []
    for lane, prompt in enumerate(prompts):
        half = len(prompt) // 2
        for begin, end in ((0, half), (half, len(prompt))):
            if end > begin:
                made.append((StepKind.PREFILL, [(lane, begin, prompt[begin:end], int(end == len(prompt)))]))
    for i in range(3):
        rows = [(lane, n + i, [int(rng.integers(0, 4096))], 1) for lane, n in enumerate(lengths)]
        made.append((StepKind.DECODE, rows))
    more = [[int(t) for t in rng.integers(0, 4096, 1 if lane else 30)] for lane in range(count)]
    made.append((StepKind.PREFILL, [(lane, n + 3, more[lane], 1) for lane, n in enumerate(lengths)]))
    return made


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 29, 32])
def test_logits_are_within_a_hundredth(
    engine: tuple[CudaGraphEngine, HostDrivenGraphEngine], model: Llama, count: int
) -> None:
    check_logits(*engine, model, count)


def check_logits(graphs: CudaGraphEngine, driven: HostDrivenGraphEngine, model: Llama, count: int) -> None:
    """Each step of `steps(count)` against the same one in float32."""
    pages = 900 // 64 + 2 if count <= 20 else 9000 // count // 64 + 3
    tables = np.random.default_rng(1).permutation(PAGES)[: count * min(pages, PAGES // count)]
    tables = tables.reshape(count, -1).astype(np.uint32)
    expected = Reference(model)
    worst = 0.0
    for kind, rows in steps(count):
        view = view_of(kind, rows, tables)
        driven.step(view)
        logits = expected.step(view, graphs.geometry)
        sampled = [i for i, row in enumerate(rows) if row[3]]
        if not sampled:
            continue
        found = graphs.buffers.logits[torch.tensor(sampled, device="cuda")].float()
        errors = (found - logits).norm(dim=1) / logits.norm(dim=1)
        worst = max(worst, float(errors.max()))
        assert bool(torch.isfinite(found).all())
        assert view.out_tokens[sampled].tolist() == found.argmax(1).tolist()
    print(f"worst relative error of {count} at once: {worst:.2e}")
    assert worst < 1e-2


def test_nothing_outside_a_step_is_touched(engine: tuple[CudaGraphEngine, HostDrivenGraphEngine]) -> None:
    """Buffers and unused pages hold NaN, rows past the count hold garbage; neither is read nor written."""
    graphs, driven = engine
    rng = np.random.default_rng(0)
    tables = rng.permutation(PAGES)[: LANES * 4].reshape(LANES, 4).astype(np.uint32)
    rows = [(lane, 0, [int(t) for t in rng.integers(0, 4096, 40 + lane)], 1) for lane in (3, 9, 30)]
    pool = graphs.kv_pool
    pool.fill_(float("nan"))
    decode = [(lane, len(prompt), [5], 1) for lane, _, prompt, _ in rows]
    mixed = [(lane, len(prompt) + 1, [6] * (20 if lane == 3 else 1), 1) for lane, _, prompt, _ in rows]
    step = tensors_of(driven.own.memory, pool.device)
    for kind, at in ((StepKind.PREFILL, rows), (StepKind.DECODE, decode), (StepKind.PREFILL, mixed)):
        before = pool.clone()
        for name in (
            "hidden",
            "normed",
            "qkv",
            "attended",
            "gate_up",
            "activated",
            "last",
            "logits",
            "partials",
            "sums",
        ):
            getattr(graphs.buffers, name).fill_(float("nan"))
        view = view_of(kind, at, tables)
        gap = len(at)  # a padding row among the live ones' table, whose other fields are garbage
        for flight in driven._flights:
            garbage = flight.image.sequences
            garbage[:] = np.frombuffer(rng.bytes(garbage.nbytes), STEP_SEQUENCE)
            garbage["sample"], garbage["token_count"] = 1, 3
            garbage[gap : gap + 1]["token_count"] = 0
        step.out_tokens.fill_(0xBEEF)
        torch.cuda.synchronize()
        driven.step(view)
        assert bool((step.out_tokens[gap:] == 0xBEEF).all())
        assert (view.out_tokens < 4096).all()
        written = (pool.view(torch.int16) != before.view(torch.int16)).any(-1)  # [pages, layers, 2, 64, kv_heads]
        expected = torch.zeros_like(written)
        for lane, position, new, _ in at:
            for place in range(position, position + len(new)):
                expected[int(tables[lane, place // 64]), :, :, place % 64] = True
        assert torch.equal(written, expected)


def test_padding_among_live_rows(engine: tuple[CudaGraphEngine, HostDrivenGraphEngine]) -> None:
    graphs, driven = engine
    rng = np.random.default_rng(5)
    tables = rng.permutation(PAGES)[: LANES * 4].reshape(LANES, 4).astype(np.uint32)
    prompts = [[int(t) for t in rng.integers(0, 4096, n)] for n in (33, 90)]
    rows: Rows = [(2, 0, prompts[0], 1), (7, 0, [], 1), (5, 0, prompts[1], 1)]
    view = view_of(StepKind.PREFILL, rows, tables)
    driven.step(view)
    assert view.out_tokens[1] == 0xDEAD
    together = graphs.buffers.logits[[0, 2]].float().clone()
    for i, row in enumerate((rows[0], rows[2])):
        driven.step(view_of(StepKind.PREFILL, [row], tables))
        alone = graphs.buffers.logits[0].float()
        assert float((alone - together[i]).norm() / alone.norm()) < 1e-2
    decode: Rows = [(2, 33, [9], 1), (7, 0, [], 1), (5, 90, [8], 1)]
    view = view_of(StepKind.DECODE, decode, tables)
    driven.step(view)
    assert view.out_tokens[1] == 0xDEAD
    assert (view.out_tokens[[0, 2]] < 4096).all()


def test_a_token_outside_the_vocabulary_fails_the_step(
    engine: tuple[CudaGraphEngine, HostDrivenGraphEngine],
) -> None:
    _, driven = engine
    tables = np.arange(LANES * 4, dtype=np.uint32).reshape(LANES, 4)
    for kind in StepKind:
        with pytest.raises(EngineError, match="outside the vocabulary"):
            driven.step(view_of(kind, [(0, 0, [4096], 1)], tables))
    with pytest.raises(EngineError, match="failed on the GPU"):
        Driver(driven, lanes=2, pages=8, lane_pages=4, step_tokens=16, seed=0).step(
            StepKind.DECODE, [(0, 0, [1], 1)], temperature=float("nan")
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sampling_on_the_device_equals_the_reference(dtype: torch.dtype) -> None:
    vocab, rows = 128_256, 256
    config = small_config(vocab=vocab, hidden=256, intermediate=512, layers=1)
    model = random_model(config, dtype, "cuda")
    from services.gpu_backend.engines.cuda.own_memory import OwnMemory
    from services.gpu_backend.engines.cuda.tail import device_tail

    own = OwnMemory(torch.device("cuda"), lanes=rows, step_tokens=rows, lane_pages=1, pages=1)
    rng = np.random.default_rng(0)
    own.header["sequence_count"] = rows
    q = own.sequences
    q["token_count"], q["sample"] = 1, 1
    q["temperature"] = rng.choice([0.0, 0.3, 0.8, 1.0, 3.0], rows)
    q["top_p"], q["top_k"] = rng.choice([1.0, 0.95, 0.5], rows), rng.choice([0, 1, 40, 5000, 200_000], rows)
    q["uniform"] = rng.integers(0, 2**24, rows) / 2**24
    logits = (torch.randn(rows, vocab, device="cuda") * torch.linspace(0.01, 8, rows, device="cuda")[:, None]).to(dtype)
    logits[5] = logits[5].round()
    own.upload()
    device_tail(model).sample(logits, tensors_of(own.memory, torch.device("cuda")))
    own.download()
    torch.cuda.synchronize()
    different = 0
    for i in range(0, rows, 3):
        row = logits[i].float().cpu()
        temperature = float(q["temperature"][i])
        expected = int(row.argmax())
        if temperature:
            expected = draw(row, temperature, float(q["top_p"][i]), int(q["top_k"][i]), float(q["uniform"][i]))
        different += int(own.out_tokens[i]) != expected
    assert own.header["error"][0] == 0
    assert different <= 1, "a target may lie on a token's very edge, once in a blue moon"


def test_graphs_can_be_launched_from_the_device(engine: tuple[CudaGraphEngine, HostDrivenGraphEngine]) -> None:
    graphs, driven = engine
    flag = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
    for kind, size in ((StepKind.DECODE, 1), (StepKind.DECODE, LANES), (StepKind.PREFILL, STEP_TOKENS)):
        graph = driver.CUgraph(graphs.capture(kind, size, driven.own.memory))
        for _ in range(2):
            result, executable = driver.cuGraphInstantiate(graph, int(flag))
            assert int(result) == 0, f"{kind.name} {size}: {result!r}"
            (result,) = driver.cuGraphUpload(executable, 0)
            assert int(result) == 0
            torch.cuda.synchronize()
            driver.cuGraphExecDestroy(executable)
