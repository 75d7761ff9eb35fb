"""The GEMMs of a layer with what can be fused to them: skinny.cu for few rows, else cuBLAS and Triton.

Both compute, on the first `rows` rows and in place in static buffers:
normed(x, norm, weight, out)   out = rms_norm(x) @ weight^T
added(x, weight, out)          out += x @ weight^T
gated(x, norm, weight, out)    out = silu(gate) * up of rms_norm(x) @ weight^T
"""

from typing import Any, Protocol

import torch
import triton

from services.gpu_backend.engines.cuda.buffers import Buffers
from services.gpu_backend.engines.cuda.layer_kernels import rms_norm, swiglu
from services.gpu_backend.engines.cuda.nvrtc import KernelModule

_SWIGLU_BLOCK = 2048
_SKINNY_THREADS = 384
_SKINNY_SHARED_BYTES = 214 * 1024
_SKINNY_MOST_NORMED = 4096
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
    """cuBLAS, through torch. Any dtype and number of rows."""

    def __init__(self, epsilon: float, buffers: Buffers, overlap: bool) -> None:
        self._epsilon = epsilon
        self._buffers = buffers
        self._overlap: dict[str, Any] = {"OVERLAP": overlap, "launch_pdl": overlap}

    def normed(self, rows: int, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        normed = self._buffers.normed[:rows]
        width = x.shape[1]
        block = triton.next_power_of_2(width)
        rms_norm[(rows,)](
            x, norm, normed, width, self._epsilon, WIDTH=block, num_warps=8 if block > 2048 else 4, **self._overlap
        )
        torch.mm(normed, weight.t(), out=out[:rows])

    def added(self, rows: int, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        out[:rows].addmm_(x[:rows], weight.t())

    def gated(self, rows: int, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        gate_up = self._buffers.gate_up[:rows]
        self.normed(rows, x, norm, weight, gate_up)
        width = out.shape[1]
        swiglu[(rows, triton.cdiv(width, _SWIGLU_BLOCK))](
            gate_up, out, width, BLOCK=_SWIGLU_BLOCK, num_warps=8, **self._overlap
        )


class SkinnyGemms:
    """skinny.cu. bfloat16, up to 8 rows, widths as `fits` says."""

    def __init__(self, epsilon: float, module: KernelModule, processors: int, overlap: bool) -> None:
        self._epsilon = epsilon
        self._module = module
        self._processors = processors
        self._overlap = overlap

    @staticmethod
    def fits(weight: torch.Tensor, normed: bool) -> bool:
        """Whether the kernels can read this weight [N, K], x being normed on the way or not."""
        if normed and weight.shape[1] > _SKINNY_MOST_NORMED:
            return False
        return weight.dtype == torch.bfloat16 and weight.shape[0] % 16 == 0 and weight.shape[1] % 64 == 0

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
        self._module.launch(
            mode,
            min(weight.shape[0] // 16, self._processors),
            _SKINNY_THREADS,
            (weight, x, norm, out, width, weight.shape[1], rows, self._epsilon),
            shared_bytes=_SKINNY_SHARED_BYTES,
            overlap=self._overlap,
        )
