"""`hostless fit attention` on an engine whose steps take the time that its settings say."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.errors import CliError
from services.cli.main import app

RUNNER = CliRunner()
QUICK = ["fit", "attention", "--engine", "synthetic", "--repeats", "1", "--contexts", "0,64,640"]


def test_coefficients_measurements_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLESS_GPU_BACKEND_SYNTHETIC_PREFILL_TOKENS_PER_S", "2000")
    monkeypatch.setenv("HOSTLESS_SHM", str(tmp_path))
    out, picture = tmp_path / "fit.json", tmp_path / "fit.svg"
    done = RUNNER.invoke(app, [*QUICK, "--chunks", "1,50,200", "--out", str(out), "--picture", str(picture)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert [(row["cached"], row["bsz"]) for row in found["samples"]] == [
        (c, b) for c in (0, 64, 640) for b in (1, 50, 200)
    ]
    assert all(row["seconds"] > 0 for row in found["samples"])
    assert found["token_s"] > 0
    assert found["setting"] in done.output
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--chunks", "few"], "--chunks few: not numbers"),
        (["--chunks", "100000"], "could not be profiled: exit code 2"),
    ],
)
def test_what_can_not_be(flags: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLESS_SHM", str(tmp_path))
    done = RUNNER.invoke(app, [*QUICK, *flags])
    assert isinstance(done.exception, CliError)
    assert words in str(done.exception)
