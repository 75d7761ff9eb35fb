"""Gates: who is inside is waited for, whoever dies inside is not waited for long, and nobody gets in later."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.common import paths
from services.fabric.errors import NoRight, NotARegion, StaleRegion
from services.fabric.gate import GRACE_S, Gate, GateKey, this_machine
from services.fabric.region import MemoryRegion
from services.fabric.rights import Rights

INSIDE = """
import sys
from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.gate import GateKey
with GateKey(RegionDescriptor.FromString(bytes.fromhex(sys.argv[1]))).hold():
    print("inside", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setattr(paths, "shm_dir", lambda: tmp_path)
    gate = Gate("gate")
    yield gate
    gate.close()


def test_who_is_inside_is_waited_for(gate: Gate) -> None:
    one, other = GateKey(gate.descriptor()), GateKey(gate.descriptor())
    with one.hold(), one.hold():
        with other.hold():
            gate.shut()
            assert not gate.vacant(0)
        assert not gate.vacant(GRACE_S + 1)
    assert gate.vacant(0)
    with pytest.raises(StaleRegion), one.hold():
        pass
    assert gate.vacant(0), "who is refused leaves nothing behind"
    one.close()
    one.close()
    other.close()


def test_a_gate_leaves_what_the_dead_left_to_regions(gate: Gate, tmp_path: Path) -> None:
    left = tmp_path / "hostless.left"
    with MemoryRegion.create("lives", 8) as lives:
        left.write_bytes(lives.path.read_bytes())  # nobody holds its lock
        Gate("other").close()
        assert left.exists()
    MemoryRegion.create("another", 8).close()
    assert not left.exists()


def test_a_key_may_be_closed_inside(gate: Gate) -> None:
    key = GateKey(gate.descriptor())
    with key.hold():
        with key.hold():
            key.close()
            with pytest.raises(StaleRegion), key.hold():
                pass
        gate.shut()
        assert not gate.vacant(0)
    assert gate.vacant(0)


def test_whoever_dies_inside_counts_as_gone_after_a_while(gate: Gate) -> None:
    command = [sys.executable, "-c", INSIDE, gate.descriptor().SerializeToString().hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        gate.shut()
        assert not gate.vacant(0)
        process.kill()
        process.wait()
    assert not gate.vacant(100)
    assert not gate.vacant(100 + GRACE_S / 2)
    assert gate.vacant(100 + GRACE_S)


def test_the_grace_is_that_of_the_last_one_that_died(gate: Gate) -> None:
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", INSIDE, gate.descriptor().SerializeToString().hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    )
    with first, second:
        for process in (first, second):
            assert process.stdout is not None
            assert process.stdout.readline() == "inside\n"
        gate.shut()
        first.kill()
        first.wait()
        assert not gate.vacant(0)
        second.kill()
        second.wait()
    assert not gate.vacant(GRACE_S + 1)
    assert gate.vacant(2 * GRACE_S + 1)


def test_another_process_that_leaves_is_gone_at_once(gate: Gate) -> None:
    command = [sys.executable, "-c", INSIDE, gate.descriptor().SerializeToString().hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "inside\n"
        gate.shut()
        process.stdin.close()
        assert process.wait() == 0
    assert gate.vacant(0)


@pytest.mark.parametrize(
    ("length", "rights", "error"), [(8, Rights.READ | Rights.WRITE, NoRight), (4, Rights.ATOMIC, NotARegion)]
)
def test_what_is_no_gate_has_no_key(gate: Gate, length: int, rights: Rights, error: type[Exception]) -> None:
    with MemoryRegion.create("other", length, rights) as other, pytest.raises(error):
        GateKey(other.descriptor())


def test_a_gate_that_was_closed_counts_as_vacant(gate: Gate) -> None:
    gate.close()
    assert gate.vacant(0)


def test_a_machine_has_one_name() -> None:
    assert this_machine() == this_machine() != ""
