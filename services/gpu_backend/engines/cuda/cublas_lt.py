"""cuBLASLt by its C interface, as far as a product of bfloat16 or float32 matrices needs it.

Unlike torch.mm it can be told how many multiprocessors there are (the resident scheduler keeps one), and it lists
its algorithms, so that the quickest can be found by trying.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from services.gpu_backend.engine import EngineError

# Values of cublasLt.h, library_types.h and cublas_api.h.
_COMPUTE_FLOAT32, _FLOAT32, _BFLOAT16, _TRANSPOSED = 68, 0, 14, 1
_DESC_TRANSPOSE_A, _DESC_PROCESSORS = 3, 15
_PREFERENCE_WORKSPACE = 1
_TYPES = {torch.bfloat16: _BFLOAT16, torch.float32: _FLOAT32}
WORKSPACE_BYTES = 32 << 20


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute one shape. `words`: opaque, cuBLASLt's."""

    words: tuple[int, ...]
    workspace: int
    processors: int


class Product:
    """out[rows, N] = x[rows, K] @ weight[N, K]^T (+ out), for one shape and any number of matrices of it."""

    def __init__(self, rows: int, n: int, k: int, dtype: torch.dtype, *, added: bool) -> None:
        """added: on top of what is in `out`. Raises EngineError if cuBLASLt is not there."""
        self._library = _library()
        kind = _TYPES[dtype]
        # Row-major matrices are column-major ones transposed: out^T = weight x^T.
        self._weight, self._x, self._out = _layout(kind, k, n), _layout(kind, k, rows), _layout(kind, n, rows)
        self._beta = ctypes.c_float(1.0 if added else 0.0)
        self._descriptions: dict[int, ctypes.c_void_p] = {}

    def algorithms(self, most: int, processors: int) -> list[Algorithm]:
        """Up to `most`, by cuBLASLt's expectation the quickest first, on a GPU of so many multiprocessors."""
        preference = ctypes.c_void_p()
        _check(self._library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "preference")
        _set(self._library.cublasLtMatmulPreferenceSetAttribute, preference, _PREFERENCE_WORKSPACE,
             ctypes.c_uint64(WORKSPACE_BYTES))  # fmt: skip
        found, count = (_Found * most)(), ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            _handle(), self._description(processors), self._weight, self._x, self._out, self._out, preference, most,
            found, ctypes.byref(count),
        )  # fmt: skip
        _check(self._library.cublasLtMatmulPreferenceDestroy(preference), "preference")
        _check(status, "no algorithm")
        good = [each for each in found[: count.value] if each.state == 0]
        return [Algorithm(tuple(each.algorithm), each.workspace, processors) for each in good]

    def run(self, algorithm: Algorithm, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """On the current stream."""
        workspace = _workspace(x.device)
        words = (ctypes.c_uint64 * 8)(*algorithm.words)
        one = ctypes.c_float(1.0)
        status = self._library.cublasLtMatmul(
            _handle(), self._description(algorithm.processors), ctypes.byref(one), _at(weight), self._weight, _at(x),
            self._x, ctypes.byref(self._beta), _at(out), self._out, _at(out), self._out, words, _at(workspace),
            ctypes.c_size_t(WORKSPACE_BYTES), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        _check(status, "a product")

    def _description(self, processors: int) -> ctypes.c_void_p:
        if processors not in self._descriptions:
            made = ctypes.c_void_p()
            library = self._library
            _check(library.cublasLtMatmulDescCreate(ctypes.byref(made), _COMPUTE_FLOAT32, _FLOAT32), "description")
            _set(library.cublasLtMatmulDescSetAttribute, made, _DESC_TRANSPOSE_A, ctypes.c_int32(_TRANSPOSED))
            _set(library.cublasLtMatmulDescSetAttribute, made, _DESC_PROCESSORS, ctypes.c_int32(processors))
            self._descriptions[processors] = made
        return self._descriptions[processors]


def version() -> int:
    """Algorithms are of use to this version only."""
    count = _library().cublasLtGetVersion
    count.restype = ctypes.c_size_t
    return int(count())


@cache
def _library() -> Any:
    """torch has loaded it already, under one of these names."""
    for name in ("libcublasLt.so.13", "libcublasLt.so.12"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise EngineError("cuBLASLt is not loaded: libcublasLt.so.13 or .12 comes with torch for CUDA")


@cache
def _handle() -> ctypes.c_void_p:
    """One for the process, as torch has."""
    handle = ctypes.c_void_p()
    _check(_library().cublasLtCreate(ctypes.byref(handle)), "creating a handle")
    return handle


@cache
def _workspace(device: torch.device) -> torch.Tensor:
    """Shared by all products: they run one after another."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _layout(kind: int, rows: int, columns: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
    _check(_library().cublasLtMatrixLayoutCreate(ctypes.byref(made), kind, *sizes), "a layout")
    return made


def _set(function: Any, of: ctypes.c_void_p, attribute: int, value: Any) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(value))
    _check(function(of, attribute, ctypes.byref(value), size), f"attribute {attribute}")


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _check(status: int, what: str) -> None:
    if status != 0:
        raise EngineError(f"cuBLASLt: {what}: status {status}")
