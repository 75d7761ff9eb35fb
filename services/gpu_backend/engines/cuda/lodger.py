"""Takes a multiprocessor of the GPU away, as the resident scheduler will, while kernels are tried."""

import time
from types import TracebackType
from typing import Any, Self

import torch

from services.gpu_backend.engine import EngineError
from services.gpu_backend.engines.cuda.nvrtc import KernelModule

_PATIENCE_S = 10.0
_TIME_WAS_UP = 2


class Lodger:
    """On the GPU while the context lasts, which may be entered again and again, but each time for `longest_ms` at most:
    what waits for the whole device, or for all multiprocessors at once, waits so long. `overstayed`: it did, the last
    time."""

    overstayed = False

    def __init__(self, device: torch.device, longest_ms: int) -> None:
        self._longest_ms = longest_ms
        self._module = KernelModule("lodger.cu")
        self._stream = torch.cuda.Stream(device)
        properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs don't know all of them
        self._room: int = properties.shared_memory_per_block_optin
        self._words = torch.zeros(16, dtype=torch.int64, pin_memory=True)

    def __enter__(self) -> Self:
        self._words.zero_()
        with torch.cuda.stream(self._stream):
            self._module.launch("lodge", 1, 32, (self._words, self._longest_ms), shared_bytes=self._room)
        give_up = time.monotonic() + _PATIENCE_S
        while int(self._words[8]) == 0:
            if time.monotonic() > give_up:
                raise EngineError(f"a kernel of one block has not started within {_PATIENCE_S:g} s")
            time.sleep(1e-4)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._words[0] = 1
        self._stream.synchronize()
        self.overstayed = int(self._words[8]) == _TIME_WAS_UP
