"""A reader past its lease gets an error, never bytes: some rounds of slow_readers.py."""

import pytest

from tests.kvstore.slow_readers import ENGINES, run


@pytest.mark.parametrize("engine", ENGINES)
def test_no_bytes_without_a_lease_that_held(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLESS_SHM", "/dev/shm")  # the machine moves it; this puts it back
    run(700, ENGINES[engine])
