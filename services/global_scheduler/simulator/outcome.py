"""What a run gave, checked: nothing may be lost or made on the way."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from services.global_scheduler._simulator import Simulation
from services.global_scheduler.simulator.cluster import Machines
from services.global_scheduler.simulator.systems import System
from services.global_scheduler.simulator.workload import Workload

RECORD = np.dtype(
    [("agent", "u4"), ("turn", "u4")]
    + [(name, "f4") for name in ("arrived", "queued", "read", "ttft", "ttst", "tpot", "finished")]
)
"""A finished turn, in seconds; ttst and tpot are -1 where an answer is too short to have them."""


class ConservationError(AssertionError):
    """Bytes, tokens, requests or blocks do not balance; the message says which."""


@dataclass(frozen=True)
class Outcome:
    cluster: str
    system: str
    agents: int
    turns: int
    simulated_s: float
    jct_s: float  # the last agent's end
    agents_left: int  # not through yet, of those that have arrived; 0 after a whole run
    records: npt.NDArray[Any] = field(repr=False)  # RECORD
    nic_balance: float  # largest storage NIC's bytes by the average, mean over the run's bins
    attention_balance: float  # largest engine's attention time by the average, in the first 5 % of the run
    ledger: dict[str, Any] = field(repr=False)

    @property
    def turns_per_s(self) -> float:
        return self.turns / self.simulated_s

    def mean(self, name: str, warm_s: float = 0.0) -> float:
        """Of a field of RECORD over turns that arrived after `warm_s`; turns without it left out."""
        values = self.values(name, warm_s)
        return float(values.mean()) if len(values) else float("nan")

    def percentile(self, name: str, percent: float, warm_s: float = 0.0) -> float:
        values = self.values(name, warm_s)
        return float(np.percentile(values, percent)) if len(values) else float("nan")

    def values(self, name: str, warm_s: float = 0.0) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = self.records[name][self.records["arrived"] >= warm_s]
        return values[values >= 0]


def outcome_of(cluster: Machines, system: System, workload: Workload, core: Simulation) -> Outcome:
    records = np.frombuffer(core.records(), RECORD)
    ledger = core.ledger()
    if not core.unfinished:
        check(cluster, ledger)
    finished = np.array(core.agents_finished())
    jct = float(finished.max()) if len(finished) else 0.0
    return Outcome(
        cluster=cluster.name,
        system=system.name,
        agents=workload.agents,
        turns=len(records),
        simulated_s=jct if not core.unfinished else core.now,
        jct_s=jct,
        agents_left=int(((finished == 0) & (workload.start_s <= core.now)).sum()),
        records=records,
        nic_balance=_nic_balance(np.array(core.reads()), cluster.nodes),
        attention_balance=_attention_balance(core),
        ledger=ledger,
    )


def check(cluster: Machines, ledger: dict[str, Any]) -> None:
    """Raises ConservationError unless everything that came in went out."""
    config = cluster.config()
    per_node = cluster.engines_per_node
    empty = (
        config.prefill_kv_tokens * per_node * cluster.prefill_nodes,
        config.decode_kv_tokens * per_node * (cluster.nodes - cluster.prefill_nodes),
    )
    balances = {
        "requests": (ledger["arrived"], ledger["placed"], ledger["finished"]),
        "hit tokens": (ledger["hit_tokens"], ledger["read_tokens"] + ledger["reused_tokens"]),
        "computed tokens": (ledger["prompt_tokens"] - ledger["hit_tokens"], ledger["computed_tokens"]),
        "generated tokens": (ledger["asked_tokens"], ledger["generated_tokens"]),
        "blocks": (ledger["blocks_filled"], ledger["blocks_stored"]),
        "engines' load": (ledger["load_left"], (0, 0, 0)),
        "HBM": (ledger["hbm_free"], empty),
        "flows": (ledger["flows_left"], 0),
        "bytes": (ledger["bytes_started"], ledger["bytes_moved"]),
        "bytes read": (ledger["bytes_moved"]["read"], ledger["read_tokens"] * config.kv_bytes),
        "bytes stored": (ledger["bytes_moved"]["persist"], ledger["blocks_stored"] * 64 * config.kv_bytes),
    }
    wrong = [f"{name} {sides}" for name, sides in balances.items() if any(side != sides[0] for side in sides)]
    if wrong:
        raise ConservationError("does not balance: " + "; ".join(wrong))


def _nic_balance(read: npt.NDArray[np.float64], nodes: int) -> float:
    """Mean over bins of largest by average, bins weighted by their bytes."""
    bins = read.reshape(-1, nodes)
    return float(bins.max(1).sum() / bins.mean(1).sum()) if read.sum() else 1.0


def _attention_balance(core: Simulation) -> float:
    largest, average = np.array(core.attention_largest()), np.array(core.attention_average())
    first = max(1, len(largest) // 20)
    return float(largest[:first].sum() / average[:first].sum()) if average[:first].sum() else 1.0
