"""Which kernel a product gets, without a GPU: cuBLASLt, the clock and the lodger are stand-ins."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("cuda.bindings", reason="NOT RUN: CUDA's Python bindings are not installed")

from services.gpu_backend.engines.cuda import products
from services.gpu_backend.engines.cuda.cublas_lt import Algorithm
from services.gpu_backend.engines.cuda.products import Products

ROWS, N, K = 4, 6, 8
QUICK, SLOW = Algorithm((1,) * 8, 0, 131), Algorithm((2,) * 8, 0, 0)


class World:
    """What the stand-ins know and saw. `times`: of cuBLAS's own choice, then by algorithm."""

    def __init__(self) -> None:
        self.times: dict[Algorithm | None, float] = {None: 1.0, QUICK: 0.9, SLOW: 1.1}
        self.looked_at: list[Algorithm | None] = []
        self.tried: list[Algorithm | None] = []
        self.waits: set[Algorithm | None] = set()
        """For a multiprocessor that is taken."""
        self.lodged, self.overstayed = 0, False
        self.targets: list[int] = []

    def product(self, rows: int, n: int, k: int, dtype: torch.dtype, *, added: bool) -> Any:
        def algorithms(most: int, processors: int) -> list[Algorithm]:
            self.targets.append(processors)
            return [SLOW] if processors == 0 else [QUICK, SLOW]

        def run(algorithm: Algorithm, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
            out.fill_(algorithm.words[0])

        return SimpleNamespace(algorithms=algorithms, run=run)

    def time(self, way: Any, x: torch.Tensor, weights: list[torch.Tensor], out: torch.Tensor, rounds: int) -> float:
        algorithm = way.args[0] if hasattr(way, "args") else None
        (self.looked_at if rounds == 1 else self.tried).append(algorithm)
        self.overstayed = algorithm in self.waits
        return self.times[algorithm]

    def lodger(self, device: torch.device, longest_ms: int) -> "World":
        return self

    def __enter__(self) -> None:
        self.lodged += 1

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    made = World()
    monkeypatch.setenv("HOSTLESS_KERNELS", str(tmp_path))
    monkeypatch.setattr(products, "Product", made.product)
    monkeypatch.setattr(products, "_time", made.time)
    monkeypatch.setattr(products, "Lodger", made.lodger)
    monkeypatch.setattr(products, "version", lambda: 130000)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    return made


def run(dtype: torch.dtype = torch.bfloat16, spare: int = 1) -> float:
    """The first number of a product of ones: K if cuBLAS's own choice computed it."""
    weight = torch.ones(N, K, dtype=dtype)
    out = torch.zeros(ROWS, N, dtype=dtype)
    made = Products([weight], torch.device("cpu"), spare)
    for _ in range(2):
        made.run(torch.ones(ROWS, K, dtype=dtype), weight, out, added=False)
    return float(out[0, 0])


def test_the_quickest_is_taken_and_each_tried_once(world: World) -> None:
    assert run() == QUICK.words[0]
    assert world.looked_at == [None, SLOW, QUICK]
    assert world.tried == [None, QUICK, SLOW]
    assert world.targets == [0, 131, 128]
    assert world.lodged == 6


def test_only_the_quickest_at_a_glance_are_timed_with_care(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_FINALISTS", 1)
    assert run() == QUICK.words[0]
    assert world.tried == [None, QUICK]


def test_another_kernel_must_be_worth_it(world: World) -> None:
    world.times[QUICK] = 0.99
    assert run() == K


def test_a_kernel_that_waits_for_the_whole_gpu_is_not_taken(world: World) -> None:
    world.waits = {QUICK}
    assert run() == K
    assert QUICK not in world.tried
    world.waits = {None, QUICK}
    assert run(spare=2) == SLOW.words[0]
    world.waits = {None, QUICK, SLOW}
    assert run(spare=3) == K


def test_what_an_earlier_run_found_is_not_tried_again(world: World) -> None:
    run()
    world.tried.clear()
    assert run() == QUICK.words[0]
    world.times[QUICK] = 2.0
    assert run(spare=0) == K  # other conditions
    assert world.tried == [None, SLOW]
    world.tried.clear()
    assert run(spare=0) == K
    assert world.tried == []


def test_float32_is_always_plain(world: World) -> None:
    assert run(torch.float32) == K
    assert world.tried == []
