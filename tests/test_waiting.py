"""Who waits in vain says for what."""

import threading
from collections.abc import Callable

import pytest

from tests import waiting

NOTHING: list[int] = []


@pytest.mark.parametrize(
    ("holds", "words"), [(lambda: bool(NOTHING), "bool\\(NOTHING\\)"), (threading.Lock().locked, "method locked")]
)
async def test_what_was_waited_for_is_told(
    holds: Callable[[], bool], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.0)
    with pytest.raises(AssertionError, match=f"not within 0 s: .*{words}.*; seen: 3"):
        await waiting.until(holds, saw=lambda: 3)
    with pytest.raises(AssertionError, match=f"not within 0 s: .*{words}"):
        waiting.wait_until(holds)
