"""The native batches on a difficult device, under sanitizers: batches.cpp, built here."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kvstore.effort import EFFORT

HERE = Path(__file__).parent
NATIVE = HERE.parents[3] / "services" / "kvstore" / "native"
ROUNDS = 40  # it tells a number after each forty
FLAGS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror"]


def test_no_order_part_error_or_damage_gives_a_wrong_byte(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("NOT TESTED: g++ is not on this machine, so batches.cpp was not built")
    program = tmp_path / "batches"
    command = [compiler, "-std=c++20", *FLAGS, f"-I{NATIVE}", str(HERE / "batches.cpp"), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [str(program), str(ROUNDS * EFFORT)], capture_output=True, text=True, timeout=300 * EFFORT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-3]) > 3 * ROUNDS
