"""How the graph engine is set: which GEMMs, how attention is cut, which shapes are captured."""

from dataclasses import dataclass, field
from typing import Literal

from services.gpu_backend.engine import EngineError

Singles = Literal["tiles", "beside"]
"""Which kernels attend for the sequences of one token at the end of a prefill step, decodes as a rule: `tiles`, those
of the prompts; `beside`, those of decode steps, at the same time."""


def decode_sizes(lanes: int) -> tuple[int, ...]:
    """Sequences of a decode step: dense where small, then every half of a power of two, up to `lanes`."""
    sizes = {1, 2, 4, 8, 16, 24, 32, 48, 64}
    size = 64
    while size < lanes:
        sizes |= {size, size + size // 2}
        size *= 2
    return (*tuple(sorted(size for size in sizes if size < lanes)), lanes)


def prefill_sizes(step_tokens: int) -> tuple[int, ...]:
    """Tokens of a prefill step. A step pays for its whole shape, so shapes lie close: an eighth apart, at best."""
    sizes = {16, 64, *range(128, 1024, 128)}
    size = 1024
    while size < step_tokens:
        sizes |= {size + part * size // 8 for part in range(8)}
        size *= 2
    return (*tuple(sorted(size for size in sizes if size < step_tokens)), step_tokens)


@dataclass(frozen=True, slots=True)
class CudaSettings:
    """Raises EngineError where a value can't be."""

    skinny_rows: int = 8
    """Steps of up to so many rows use skinny.cu, larger ones cuBLAS; 0: never. At most 8. bfloat16 only."""
    overlap_launches: bool = True
    """Programmatic dependent launch: a GEMM starts to load weights while the kernel before it ends."""
    programs_per_processor: int = 4
    """Attention programs that a decode step is cut into, for each of the GPU's multiprocessors."""
    spare_processors: int = 1
    """Multiprocessors that GEMMs leave alone. The resident scheduler lives on one, and a block that has to wait for
    it there doubles the time of a GEMM. 0: where the host drives."""
    singles: Singles = "tiles"
    """In prefill steps; the first costs nothing where they hold no decodes."""
    decode_sizes: tuple[int, ...] = field(default=())
    """Ascending, the last is `lanes`; empty: `decode_sizes`."""
    prefill_sizes: tuple[int, ...] = field(default=())
    """Ascending, the last is `step_tokens`; empty: `prefill_sizes`."""

    def __post_init__(self) -> None:
        if not 0 <= self.skinny_rows <= 8:
            raise EngineError(f"skinny_rows is {self.skinny_rows}; it must be 0 to 8")
        if self.spare_processors < 0:
            raise EngineError(f"spare_processors is {self.spare_processors}; it must not be negative")
        if self.programs_per_processor < 1:
            raise EngineError(f"programs_per_processor is {self.programs_per_processor}; it must be at least 1")
