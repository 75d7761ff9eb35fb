"""Boots a machine with RDMA devices and runs in it what needs them: conformance over verbs, and a mesh by RDMA.

The tests' own files say what they show; this one says what came of them there.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.rdma.vm import Machine, NoMachine

pytestmark = [pytest.mark.rdma, pytest.mark.slow]  # an emulated machine: minutes, even on two quiet cores

LIMIT_S = 900.0
INSIDE = ("tests/fabric/conformance", "tests/fabric/test_verbs.py", "tests/rdma/test_mesh.py")
WHICH = "verbs or rdma"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[ElementTree.Element]:
    exchange = tmp_path_factory.mktemp("exchange")
    try:
        machine = Machine.prepare()
    except NoMachine as reason:
        pytest.skip(f"NO RDMA WAS TESTED: {reason}")
    arguments = ["-q", "--color=no", "-p", "no:cacheprovider", "-k", WHICH, f"--junitxml={exchange}/report.xml"]
    code = machine.run([sys.executable, "-m", "pytest", *arguments, *INSIDE], exchange, LIMIT_S)
    assert (exchange / "report.xml").exists(), f"the machine ended with {code}, without a report"
    return ElementTree.parse(exchange / "report.xml").getroot().findall(".//testcase")


@pytest.mark.parametrize("part", [*INSIDE[:2], pytest.param(INSIDE[2], marks=pytest.mark.model)])
def test_inside(cases: list[ElementTree.Element], part: str) -> None:
    module = Path(part).with_suffix("").as_posix().replace("/", ".")
    mine = [case for case in cases if (case.get("classname") or "").startswith(module)]
    assert mine, f"nothing of {part} was run in the machine"
    bad = {
        case.get("name"): found.text or found.get("message")
        for case in mine
        for kind in ("failure", "error", "skipped")
        for found in case.findall(kind)
    }
    assert not bad, "\n\n".join(f"{name}:\n{why}" for name, why in bad.items())
