"""The end of a ring's thread; what it does while it lives is test_attachment.py's and test_cut_link.py's."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from services.tokenizer import ring_thread
from services.tokenizer.pacing import PollSettings
from services.tokenizer.ring_driver import Attached


async def test_a_close_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ring_thread, "CLOSE_S", 0.05)
    goes_on = threading.Event()
    region = SimpleNamespace(interrupt=lambda: None)
    share: Any = SimpleNamespace(region=region, in_flight=0, close=lambda: goes_on.wait(30))
    driver = ring_thread.RingOnThread(Attached(share, lambda _: None, lambda: None, PollSettings(), lambda: 0.0))
    await driver.close()
    assert "does not end" in caplog.text
    caplog.clear()
    goes_on.set()
    monkeypatch.setattr(ring_thread, "CLOSE_S", 30)
    await driver.close()
    assert not caplog.records
