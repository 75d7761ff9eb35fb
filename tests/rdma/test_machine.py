"""Boots machines with RDMA devices and runs in them what needs those: conformance over verbs, and meshes by RDMA.

The tests' own files say what they show; this one says what came of them there.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.rdma.vm import Machine, NoMachine

pytestmark = [pytest.mark.rdma, pytest.mark.slow]  # an emulated machine: minutes, even on two quiet cores

LIMIT_S = 900.0
FABRIC = ("tests/fabric/conformance", "tests/fabric/test_verbs.py", "tests/gpu_backend/kv_agent/test_loopback_pages.py")
MESH = ("tests/rdma/test_mesh.py", "tests/rdma/test_cut_cable.py")
TWO_ENGINES = ("tests/rdma/test_two_engines.py",)
WHICH = "verbs or rdma"


def run(parts: tuple[str, ...], exchange: Path) -> list[ElementTree.Element]:
    """What came of these tests, in a machine of their own."""
    try:
        machine = Machine.prepare()
    except NoMachine as reason:
        pytest.skip(f"NO RDMA WAS TESTED: {reason}")
    arguments = ["-q", "--color=no", "-p", "no:cacheprovider", "-k", WHICH, f"--junitxml={exchange}/report.xml"]
    code = machine.run([sys.executable, "-m", "pytest", *arguments, *parts], exchange, LIMIT_S)
    assert (exchange / "report.xml").exists(), f"the machine ended with {code}, without a report"
    return ElementTree.parse(exchange / "report.xml").getroot().findall(".//testcase")


@pytest.mark.parametrize(
    "parts", [FABRIC, pytest.param(MESH, marks=pytest.mark.model), TWO_ENGINES], ids=lambda p: p[-1]
)
def test_inside(parts: tuple[str, ...], tmp_path: Path) -> None:
    cases = run(parts, tmp_path)
    for part in parts:
        module = Path(part).with_suffix("").as_posix().replace("/", ".")
        assert any((case.get("classname") or "").startswith(module) for case in cases), f"nothing of {part} was run"
    bad = {
        case.get("name"): found.text or found.get("message")
        for case in cases
        for kind in ("failure", "error", "skipped")
        for found in case.findall(kind)
    }
    assert not bad, "\n\n".join(f"{name}:\n{why}" for name, why in bad.items())
