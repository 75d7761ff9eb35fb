"""Killed at random moments, on a disk that fails and tears: see bench/store_crash.py, which does this 200 times."""

from pathlib import Path

import pytest

from bench.store_crash import Shadow, one_round
from tests.kvstore.effort import EFFORT


@pytest.mark.parametrize("faults", [False, True], ids=["kills", "kills and a bad disk"])
def test_what_was_committed_is_there_and_nothing_else(tmp_path: Path, faults: bool) -> None:
    shadow = Shadow()
    for number in range(3 * EFFORT):
        one_round(tmp_path, number, shadow, seed=number, faults=faults)
    assert len(shadow.must) > 10
