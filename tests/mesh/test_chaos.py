"""A minute of bench/chaos.py."""

from pathlib import Path

import pytest

from bench.chaos import arguments, chaos

pytestmark = pytest.mark.slow  # it is a minute, and the mesh has to start


async def test_every_request_ends_well_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLESS_MODELS", str(tmp_path / "models"))
    logs = tmp_path / "logs"
    options = ["--minutes", "1", "--mesh", "1P2D", "--conversations", "24", "--logs", f"{logs}"]
    tally = await chaos(tmp_path, arguments(options))
    assert tally.faults == [], f"logs: {logs}"
    assert tally.ends["whole"]
    assert tally.kills
