"""How well the simulator predicts a live run: its log replayed, predicted against measured."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.global_scheduler._simulator import Config, DecodeCost, PrefillCost
from services.global_scheduler.policy.chunk import Quota
from services.global_scheduler.simulator.cluster import Machines
from services.global_scheduler.simulator.driver import TIMING, Timing, simulate
from services.global_scheduler.simulator.importing import read_measured, read_requests
from services.global_scheduler.simulator.outcome import Outcome
from services.global_scheduler.simulator.systems import System
from services.global_scheduler.simulator.workload import BLOCK_TOKENS

MEMORY_BYTES_PER_S = 1e12
"""So much more than the links of a live mesh that it binds nothing."""


@dataclass(frozen=True)
class LiveMesh:
    """A mesh that ran, as `Machines`: an engine a node, links as they were shaped, costs as its engines were given them
    (by the names of _simulator's PrefillCost and DecodeCost)."""

    model_name: str
    prefill_nodes: int
    decode_nodes: int
    storage_bytes_per_s: float
    compute_bytes_per_s: float
    layers: int
    kv_bytes: float  # of a token
    prefill_pages: int
    decode_pages: int
    prefill: dict[str, float]
    decode: dict[str, float]
    step_tokens: int  # most of a prefill step
    alpha_tokens: int
    beta_tokens: int
    reads_in_flight: int  # of a node; more wait
    engines_per_node: int = 1

    @property
    def name(self) -> str:
        return f"{self.prefill_nodes}P{self.decode_nodes}D"

    @property
    def nodes(self) -> int:
        return self.prefill_nodes + self.decode_nodes

    def config(self) -> Config:
        config = Config()
        config.prefill_nodes, config.decode_nodes = self.prefill_nodes, self.decode_nodes
        config.engines_per_node, config.prefill_group, config.decode_group = self.engines_per_node, 1, 1
        config.storage_read = config.storage_write = self.storage_bytes_per_s
        config.compute_nic, config.dram = self.compute_bytes_per_s, MEMORY_BYTES_PER_S
        config.reads_in_flight = self.reads_in_flight
        config.layers, config.kv_bytes = self.layers, self.kv_bytes
        config.prefill_kv_tokens = self.prefill_pages * BLOCK_TOKENS
        config.decode_kv_tokens = self.decode_pages * BLOCK_TOKENS
        config.series_s = 1.0
        config.prefill, config.decode = _cost(PrefillCost(), self.prefill), _cost(DecodeCost(), self.decode)
        return config

    @property
    def timing(self) -> Timing:
        """Requests are placed as they come; engines prefill first come, first served, as far as a step goes."""
        return Timing(round_s=0.002, report_s=0.25, quota=Quota(float("inf"), self.step_tokens))

    def tuned(self, system: System) -> System:
        """With the parameters of the mesh's scheduler."""
        return system.tuned(self.alpha_tokens, self.beta_tokens)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read_mesh(path: Path) -> LiveMesh:
    """What LiveMesh.write wrote. Raises ValueError that names the file."""
    try:
        return LiveMesh(**json.loads(path.read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} describes no mesh: {error}") from None


@dataclass(frozen=True)
class Comparison:
    quantity: str
    requests: int  # that have it both ways
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.predicted / self.measured - 1


def replay(log: Path, cluster: Machines, system: System, timing: Timing = TIMING) -> list[Comparison]:
    """JCT, and median and 95th percentile of TTFT, TTST and TPOT over the log's requests (importing.py says what a line
    holds); what the log has not measured is left out. Raises TraceError for a log that doesn't hold together."""
    return compare(simulate(cluster, system, read_requests(log), timing), log)


def compare(outcome: Outcome, log: Path) -> list[Comparison]:
    """Of a simulation of the log's requests."""
    records = outcome.records[np.lexsort((outcome.records["turn"], outcome.records["agent"]))]
    measured = read_measured(log)
    rows = []
    took = measured["finished_s"] - measured["arrived_s"].min()
    if not np.isnan(took).any():
        rows.append(Comparison("JCT", len(took), outcome.jct_s, float(took.max())))
    for name in ("ttft", "ttst", "tpot"):
        rows += _percentiles(name, records[name].astype(np.float64), measured[f"{name}_s"])
    return rows


def _percentiles(name: str, predicted: npt.NDArray[np.float64], measured: npt.NDArray[np.float64]) -> list[Comparison]:
    both = ~np.isnan(measured) & (predicted >= 0)
    if not both.any():
        return []
    return [
        Comparison(
            f"{name.upper()} {label}",
            int(both.sum()),
            float(np.percentile(predicted[both], percent)),
            float(np.percentile(measured[both], percent)),
        )
        for label, percent in (("median", 50), ("P95", 95))
    ]


def _cost(cost: Any, values: dict[str, float]) -> Any:
    for name, value in values.items():
        setattr(cost, name, value)
    return cost
