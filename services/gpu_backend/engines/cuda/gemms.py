"""The GEMMs of a layer with what can be fused to them: skinny.cu for few rows, else cuBLAS and Triton.

Both compute, on the first `rows` rows and in place in static buffers:
normed(x, norm, weight, out)   out = rms_norm(x) @ weight^T
added(x, weight, out)          out += x @ weight^T
gated(x, norm, weight, out)    out = silu(gate) * up of rms_norm(x) @ weight^T
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import triton

from services.gpu_backend.engines.cuda.buffers import Buffers
from services.gpu_backend.engines.cuda.layer_kernels import rms_norm, swiglu
from services.gpu_backend.engines.cuda.nvrtc import KernelModule
from services.gpu_backend.engines.cuda.products import Products

_SWIGLU_BLOCK = 2048
_SKINNY_THREADS = 640
_SKINNY_SHARED_BYTES = 218 * 1024
_SKINNY_TILE = 16
_SKINNY_PIECE = 4096
_SKINNY_MOST_ROWS = 8
"""As skinny.cu has them."""


class Gemms(Protocol):
    def normed(
        self, rows: int, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
    ) -> None: ...

    def added(self, rows: int, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None: ...

    def gated(
        self, rows: int, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
    ) -> None: ...


class LibraryGemms:
    """cuBLAS. Any dtype and number of rows."""

    def __init__(self, epsilon: float, buffers: Buffers, products: Products, overlap: bool) -> None:
        self._epsilon = epsilon
        self._buffers = buffers
        self._products = products
        self._overlap: dict[str, Any] = {"OVERLAP": overlap, "launch_pdl": overlap}

    def normed(self, rows: int, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        normed = self._buffers.normed[:rows]
        width = x.shape[1]
        block = triton.next_power_of_2(width)
        rms_norm[(rows,)](
            x, norm, normed, width, self._epsilon, WIDTH=block, num_warps=8 if block > 2048 else 4, **self._overlap
        )
        self._products.run(normed, weight, out[:rows], added=False)

    def added(self, rows: int, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        self._products.run(x[:rows], weight, out[:rows], added=True)

    def gated(self, rows: int, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        gate_up = self._buffers.gate_up[:rows]
        self.normed(rows, x, norm, weight, gate_up)
        width = out.shape[1]
        swiglu[(rows, triton.cdiv(width, _SWIGLU_BLOCK))](
            gate_up, out, width, BLOCK=_SWIGLU_BLOCK, num_warps=8, **self._overlap
        )


class SkinnyGemms:
    """skinny.cu. bfloat16, up to 8 rows, widths as `fits` says."""

    def __init__(
        self, epsilon: float, module: KernelModule, weights: Sequence[torch.Tensor], processors: int, overlap: bool
    ) -> None:
        """weights: all that it will see. processors: blocks of a launch, at most."""
        self._epsilon = epsilon
        self._module = module
        self._processors = processors
        self._overlap = overlap
        parts = max(_pieces(weight) * weight.shape[0] for weight in weights) * _SKINNY_MOST_ROWS
        tiles = max(weight.shape[0] for weight in weights) // _SKINNY_TILE
        self._partials = torch.empty(parts, dtype=torch.float32, device=weights[0].device)
        self._arrivals = torch.zeros(tiles, dtype=torch.int32, device=weights[0].device)

    @staticmethod
    def fits(weight: torch.Tensor, normed: bool) -> bool:
        """Whether the kernels can read this weight [N, K], x being normed on the way or not."""
        if normed and _pieces(weight) > 1:
            return False
        whole = weight.shape[0] % _SKINNY_TILE == 0 and weight.shape[1] % (64 * _pieces(weight)) == 0
        return weight.dtype == torch.bfloat16 and whole

    def normed(self, rows: int, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        self._launch("normed", rows, x, norm, weight, out, weight.shape[0])

    def added(self, rows: int, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        self._launch("added", rows, x, x, weight, out, weight.shape[0])

    def gated(self, rows: int, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        self._launch("gated", rows, x, norm, weight, out, weight.shape[0] // 2)

    def _launch(
        self, mode: str, rows: int, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, out: torch.Tensor,
        width: int,
    ) -> None:  # fmt: skip
        pieces = _pieces(weight)
        self._module.launch(
            mode,
            pieces * min(weight.shape[0] // _SKINNY_TILE, max(1, self._processors // pieces)),
            _SKINNY_THREADS,
            (weight, x, norm, out, width, weight.shape[1], rows, self._epsilon, pieces, self._partials, self._arrivals),
            shared_bytes=_SKINNY_SHARED_BYTES,
            overlap=self._overlap,
        )


def _pieces(weight: torch.Tensor) -> int:
    """Pieces that skinny.cu cuts the K of a weight [N, K] into."""
    return -(-weight.shape[1] // _SKINNY_PIECE)
