"""What a node can do, and how much of it software gets: the simulator's one calibration."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HARDWARE = Path(__file__).with_name("hardware.toml")
GIGA = 1e9


@dataclass(frozen=True)
class Efficiency:
    """Parts of the peaks that are reached, and latencies that no batch hides."""

    gemm: float
    attention: float
    hbm_bandwidth: float
    hbm_capacity: float
    nic: float
    expert_layer_ms: float
    dense_layer_ms: float


@dataclass(frozen=True)
class Hardware:
    """A node (D14): g GPUs, each with a compute NIC; s storage NICs; memory bandwidth M, NIC bandwidth B."""

    name: str
    gpus: int
    storage_nics: int
    nic_gbytes_per_s: float
    dram_gbytes_per_s: float
    hbm_gbytes: float
    hbm_gbytes_per_s: float
    fp8_tflops: float
    bf16_tflops: float
    efficiency: Efficiency

    @property
    def nic_bytes_per_s(self) -> float:
        return self.nic_gbytes_per_s * GIGA * self.efficiency.nic

    @property
    def dram_bytes_per_s(self) -> float:
        return self.dram_gbytes_per_s * GIGA

    @property
    def hbm_bytes_per_s(self) -> float:
        return self.hbm_gbytes_per_s * GIGA * self.efficiency.hbm_bandwidth

    def flops(self, weight_bytes: int) -> float:
        """Peak of a GPU for elements of one byte (FP8) or two (BF16)."""
        return (self.fp8_tflops if weight_bytes == 1 else self.bf16_tflops) * 1e12


def load_hardware(name: str = "hopper", path: Path = HARDWARE) -> Hardware:
    """Raises ValueError that names the hardware there is."""
    table: dict[str, dict[str, Any]] = tomllib.loads(path.read_text())
    if name not in table:
        raise ValueError(f"hardware {name!r} is not in {path.name}; there is: {', '.join(sorted(table))}")
    fields = dict(table[name])
    efficiency = Efficiency(**fields.pop("efficiency"))
    return Hardware(name=name, efficiency=efficiency, **fields)
