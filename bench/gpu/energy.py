"""Energy that a GPU has used, by NVML."""

import os
import sys
from typing import Any


class Energy:
    """In joules since some moment; None where NVML is not there or does not count."""

    def __init__(self, ordinal: int = 0) -> None:
        """ordinal: among the GPUs that this process sees."""
        if seen := os.environ.get("CUDA_VISIBLE_DEVICES"):
            ordinal = int(seen.split(",")[ordinal])  # NVML sees all
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(ordinal)
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
            self._nvml = pynvml
        except Exception as error:
            print(f"no energy is measured: {error!r}", file=sys.stderr)

    def joules(self) -> float | None:
        if self._nvml is None:
            return None
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
