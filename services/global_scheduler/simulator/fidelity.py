"""How well the simulator predicts a live run: its log replayed, predicted against measured."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.global_scheduler.simulator.cluster import Cluster
from services.global_scheduler.simulator.driver import TIMING, Timing, simulate
from services.global_scheduler.simulator.importing import read_measured, read_requests
from services.global_scheduler.simulator.systems import System


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


def replay(log: Path, cluster: Cluster, system: System, timing: Timing = TIMING) -> list[Comparison]:
    """Mean and 95th percentile of TTFT and TPOT over the log's requests (importing.py says what a line holds).
    Raises TraceError for a log that doesn't hold together or measured nothing."""
    outcome = simulate(cluster, system, read_requests(log), timing)
    order = np.argsort(outcome.records["agent"])  # an agent a line
    rows = []
    for name, measured in read_measured(log).items():
        predicted = outcome.records[name.removesuffix("_s")][order].astype(np.float64)
        both = ~np.isnan(measured) & (predicted >= 0)
        if both.any():
            for label, percent in (("median", 50), ("P95", 95)):
                rows.append(
                    Comparison(
                        f"{name.removesuffix('_s').upper()} {label}",
                        int(both.sum()),
                        float(np.percentile(predicted[both], percent)),
                        float(np.percentile(measured[both], percent)),
                    )
                )
    return rows
