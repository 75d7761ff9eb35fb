"""`hostless sim` and `hostless plan` on a trace that runs in a moment."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from services.cli.errors import CliError, UsageError
from services.cli.main import app
from tests.processes import running
from tests.waiting import PATIENCE_S, wait_until

RUNNER = CliRunner()
SMALL = ["--model", "ds-27b", "--nodes", "1P1D"]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    log = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 100 * i, "input_length": 2000 + i, "output_length": 9, "hash_ids": [1, 2, 10 + i, 50 + i]}
        for i in range(30)
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    return str(log)


def test_compare_writes_table_and_picture(trace: str, tmp_path: Path) -> None:
    table, picture = tmp_path / "rows.csv", tmp_path / "jct.svg"
    command = ["sim", "compare", *SMALL, "--workload", trace, "--out", str(table), "--picture", str(picture)]
    done = RUNNER.invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "oracle" in done.output
    assert len(table.read_text().splitlines()) == 7
    assert picture.read_text().startswith("<svg")


def test_sweep_over_nodes(trace: str) -> None:
    command = ["sim", "sweep", "--model", "ds-27b", "--over", "nodes", "--values", "1P1D,1P2D", "--workload", trace]
    done = RUNNER.invoke(app, [*command, "--systems", "basic,dualpath"])
    assert done.exit_code == 0, done.output
    assert done.output.count("1P2D") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "fastest"], "system 'fastest' is not known"),
        (["run", "--nodes", "two"], "--nodes two: not understood"),
        (["run", "--workload", "nowhere"], "neither published"),
        (["run", "--model", "gpt"], "has no shape"),
        (["sweep", "--over", "luck"], "--over luck: not known"),
        (["sweep", "--values", "1,many"], "'many'"),
    ],
)
def test_errors_name_what_is_wrong(arguments: list[str], words: str) -> None:
    done = RUNNER.invoke(app, ["sim", *arguments])
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)


def test_no_name_is_cut_where_the_terminal_is_narrow(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.simulation.terminal", lambda: Console(width=80, highlight=False))
    done = RUNNER.invoke(app, ["sim", "compare", *SMALL, "--workload", trace, "--systems", "basic,dualpath-rr"])
    assert done.exit_code == 0, done.output
    assert "dualpath-rr" in done.output
    assert "…" not in done.output


def test_plan_refuses_part_of_a_node() -> None:
    done = RUNNER.invoke(app, ["plan", "--gpus", "12"])
    assert isinstance(done.exception, CliError)
    assert "not whole nodes" in str(done.exception)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_plan_that_is_ended_leaves_nothing(number: signal.Signals, processes: int) -> None:
    command = [sys.executable, "-m", "services.cli.main", "plan", "--gpus", "48", "--model", "ds-27b"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) >= processes)  # a tracker of resources, then a worker
        workers = [int(pid) for pid in children.read_text().split()]
        os.killpg(process.pid, number)  # as a terminal does
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number, told
    assert "leaked" not in told
    wait_until(lambda: not any(running(pid) for pid in workers))
