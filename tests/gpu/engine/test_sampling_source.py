"""sampling.cuh, compiled for the host as a block of one thread, against engines/sampling.py. Needs g++."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_backend.engines.sampling import draw
from tests.gpu.engine.host_library import host_library

KERNELS = Path(__file__).parents[3] / "services/gpu_backend/engines/cuda/kernels"
GLUE = """
#include "sampling.cuh"
using namespace hostless_sampling;
extern "C" long long draw_float32(const float* row, u32 vocab, float t, float p, u32 k, float u) {
  static Shared shared;
  return sample_row(row, vocab, t, p, k, u, shared);
}
extern "C" long long draw_bfloat16(const u16* row, u32 vocab, float t, float p, u32 k, float u) {
  static Shared shared;
  return sample_row(row, vocab, t, p, k, u, shared);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    loaded = host_library(tmp_path_factory.mktemp("sampling"), GLUE, KERNELS)
    for name in ("draw_float32", "draw_bfloat16"):
        function = getattr(loaded, name)
        function.restype = ctypes.c_longlong
        function.argtypes = [
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_float, ctypes.c_float, ctypes.c_uint32, ctypes.c_float,
        ]  # fmt: skip
    return loaded


def drawn(
    library: ctypes.CDLL, logits: torch.Tensor, temperature: float, top_p: float, top_k: int, uniform: float
) -> int:
    name = "draw_bfloat16" if logits.dtype == torch.bfloat16 else "draw_float32"
    row = logits.contiguous()
    return int(getattr(library, name)(row.data_ptr(), len(row), temperature, top_p, top_k, uniform))


def single(value: float) -> float:
    return float(np.float32(value))


@st.composite
def rows(data: st.DrawFn) -> torch.Tensor:
    vocab = data(st.sampled_from([1, 2, 7, 300, 4096, 20_000]))
    torch.manual_seed(data(st.integers(0, 2**31)))
    shape = data(st.sampled_from(["normal", "flat", "ties", "spike", "steps", "infinite", "tiny"]))
    logits = torch.randn(vocab) * data(st.sampled_from([0.01, 1.0, 4.0, 30.0]))
    if shape == "flat":
        logits = torch.full((vocab,), float(logits[0]))
    elif shape == "ties":
        logits = logits.round()
    elif shape == "spike":
        logits[vocab // 2] += 1000
    elif shape == "steps":
        logits = torch.where(torch.rand(vocab) < 0.5, logits[0], logits[-1])
    elif shape == "infinite":
        logits[1:] = torch.where(torch.rand(vocab - 1) < 0.5, logits[1:], float("-inf"))
    elif shape == "tiny":
        logits = logits * 1e-38
    return logits.bfloat16() if data(st.booleans()) else logits


@settings(max_examples=400, deadline=None)
@given(
    logits=rows(),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.0, 50.0]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 2, 50, 1000, 100_000]),
    uniform=st.integers(0, 2**24 - 1).map(lambda n: n / 2**24),
)
def test_draws_are_those_of_the_reference(
    library: ctypes.CDLL, logits: torch.Tensor, temperature: float, top_p: float, top_k: int, uniform: float
) -> None:
    temperature, top_p = single(temperature), single(top_p)
    token = drawn(library, logits, temperature, top_p, top_k, uniform)
    expected = draw(logits.float(), temperature, top_p, top_k, uniform)
    if token != expected:  # only where float64 itself can't tell: the target lies on a token's very edge
        assert _near_edge(logits.float(), temperature, top_p, top_k, uniform, token)


def _near_edge(logits: torch.Tensor, temperature: float, top_p: float, top_k: int, uniform: float, token: int) -> bool:
    """Whether a nudge of 1e-9 to uniform or top_p makes the reference draw the same token."""
    for nudge in (-1e-9, 1e-9):
        for p in (top_p, min(1.0, top_p + nudge)):
            for u in (uniform, min(max(uniform + nudge, 0.0), 1 - 2**-53)):
                if draw(logits, temperature, p, top_k, u) == token:
                    return True
    return False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_temperature_0_takes_the_first_of_the_highest(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    logits = torch.randn(5000).to(dtype)
    logits[[3100, 77, 4999]] = 9.0
    assert drawn(library, logits, 0.0, 1.0, 0, 0.5) == 77
    assert drawn(library, torch.tensor([-0.0, 0.0, -1.0], dtype=dtype), 0.0, 1.0, 0, 0.5) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(library: ctypes.CDLL, bad: float) -> None:
    logits = torch.zeros(1000)
    logits[123] = bad
    assert drawn(library, logits, 0.0, 1.0, 0, 0.5) == -1
    assert drawn(library, logits, 1.0, 1.0, 0, 0.5) == -1
    assert drawn(library, torch.full((10,), float("-inf")), 0.0, 1.0, 0, 0.5) == -1


@pytest.mark.parametrize(
    ("temperature", "top_p", "uniform"),
    [(-1.0, 1.0, 0.5), (float("nan"), 1.0, 0.5), (1.0, 0.0, 0.5), (1.0, 1.5, 0.5), (1.0, 1.0, 1.0), (1.0, 1.0, -0.1)],
)
def test_parameters_out_of_range_are_refused(
    library: ctypes.CDLL, temperature: float, top_p: float, uniform: float
) -> None:
    assert drawn(library, torch.randn(100), temperature, top_p, 0, uniform) == -1
