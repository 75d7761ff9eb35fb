"""`hostless fabric check` prints what was found, and fails when something is missing."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from services.cli.errors import CliError
from services.cli.main import app
from services.fabric.verbs import inventory
from services.fabric.verbs.inventory import Finding, Verdict


@pytest.mark.parametrize("verdict", Verdict)
def test_check(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    def found() -> Iterator[Finding]:
        yield Finding(Verdict.FINE, "core", "native")
        yield Finding(verdict, "uverbs", "as it is", "do something")

    monkeypatch.setattr(inventory, "findings", found)
    result = CliRunner().invoke(app, ["fabric", "check"])
    assert f"{verdict.value:<8} uverbs: as it is" in result.output
    assert "do something" in result.output
    assert isinstance(result.exception, CliError) == (verdict is Verdict.MISSING)
