"""What is shown while services start."""

from typing import Any

from services.cli.mesh.console import ConsoleReporter


class Screen:
    """Stands for rich's Console and for its spinner."""

    def __init__(self) -> None:
        self.spinner = ""
        self.lines: list[str] = []

    def print(self, line: str) -> None:
        self.lines.append(line)

    def status(self, text: str) -> "Screen":
        self.spinner = text
        return self

    update = status

    def start(self) -> None:
        assert self.spinner

    def stop(self) -> None:
        self.spinner = ""


def test_the_last_one_says_what_it_waits_for() -> None:
    screen: Any = Screen()
    reporter = ConsoleReporter(screen)
    for name in ("tokenizer", "gateway"):
        reporter.starting(name, 1)
    reporter.waiting("tokenizer", "no answer yet")
    reporter.waiting("gateway", "no engine is live [yet]")
    assert screen.spinner == "waiting for tokenizer, gateway"
    reporter.ready("tokenizer", 1.0)
    assert screen.spinner == r"waiting for gateway: no engine is live \[yet]"
    reporter.ready("gateway", 2.0)
    assert screen.spinner == ""
    assert len(screen.lines) == 2
