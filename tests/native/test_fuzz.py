"""A short fuzzing of the encoder; `python tests/native/fuzz/run.py --minutes 10` is the long one."""

import re
from pathlib import Path

import pytest

from tests.native.fuzz import run


@pytest.mark.slow  # a build with sanitizers, and then it fuzzes
def test_a_vocabulary_and_a_text_of_any_bytes(tmp_path: Path) -> None:
    try:
        program = run.build(tmp_path)
    except run.CannotBuild as error:
        pytest.skip(f"NOT TESTED: {error}")
    printed = run.fuzz(program, seconds=20)
    executed = re.search(r"number_of_executed_units: (\d+)", printed)
    assert executed is not None, printed
    assert int(executed[1]) > 0, printed
