"""Outcomes as rows, and rows as CSV or Parquet."""

import csv
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from services.global_scheduler.simulator.outcome import Outcome

Row = dict[str, str | int | float]


def row(outcome: Outcome) -> Row:
    """Seconds, but TPOT in ms."""
    return {
        "system": outcome.system,
        "cluster": outcome.cluster,
        "agents": outcome.agents,
        "turns": outcome.turns,
        "jct_s": round(outcome.jct_s, 1),
        "turns_per_s": round(outcome.turns_per_s, 2),
        "ttft_s": round(outcome.mean("ttft"), 3),
        "ttft_p95_s": round(outcome.percentile("ttft", 95), 3),
        "ttst_s": round(outcome.mean("ttst"), 3),
        "tpot_ms": round(outcome.mean("tpot") * 1000, 1),
        "queued_s": round(outcome.mean("queued"), 3),
        "read_s": round(outcome.mean("read"), 3),
        "nic_balance": round(outcome.nic_balance, 3),
        "attention_balance": round(outcome.attention_balance, 3),
        "preemptions": outcome.ledger["preemptions"],
    }


def write(rows: Sequence[Row], path: Path) -> None:
    """CSV, or Parquet for a name that ends so. Raises ValueError without rows, or for Parquet without pyarrow."""
    if not rows:
        raise ValueError(f"nothing to write to {path}")
    if path.suffix != ".parquet":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return
    if find_spec("pyarrow") is None:
        raise ValueError(f"{path}: Parquet needs pyarrow; pip install 'hostless[simulator]', or name a .csv file")
    import pyarrow  # optional extra
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
