"""The scheduler core under sanitizers, garbage, and an exhaustive search: programs built here from its headers.

A machine without g++ skips these, and says so; without nvcc, only the device build.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SERVICES = HERE.parents[1] / "services"
INCLUDES = [f"-I{HERE}", f"-I{SERVICES}/gpu_backend/scheduler", f"-I{SERVICES}/fabric/native"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
THREAD = ("-O1", "-g", "-fsanitize=thread")
ADDRESS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
UNLANDED = ("-O1", "-g", "-DHOSTLESS_HANDS_OVER_UNLANDED=1")
"""tuning.hpp's other way through the core."""


def need(compiler: str) -> str:
    path = shutil.which(compiler)
    if path is None:
        pytest.skip(f"NOT TESTED: {compiler} is not on this machine, so {HERE.name}/ was not built with it")
    return path


def build(folder: Path, source: str, flags: tuple[str, ...]) -> Path:
    program = folder / source.removesuffix(".cpp")
    command = [need("g++"), "-std=c++20", "-pthread", *WARNINGS, *flags, *INCLUDES, str(HERE / source)]
    built = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    return program


def run(program: Path, *arguments: str) -> str:
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=[THREAD, ADDRESS, UNLANDED], ids=["thread", "address", "unlanded"])
def stress(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stress"), "stress.cpp", request.param)


@pytest.mark.slow  # three builds, two with sanitizers
@pytest.mark.parametrize("team", ["host", "team"])
def test_threads_race_for_nothing_and_every_token_is_right(stress: Path, team: str) -> None:
    for seed in ("1", "2", "3"):  # chunks; whole prompts; mixed steps
        printed = run(stress, team, seed, "800")
        assert " 0 tokens" not in printed
        assert " 0 preemptions" not in printed, "no eviction was seen: the stress has lost its point"


def test_garbage_costs_nothing_but_its_own_request(tmp_path: Path) -> None:
    run(build(tmp_path, "fuzz.cpp", ADDRESS), "1", "2000")


@pytest.mark.slow  # looks at nearly two million states
def test_no_reachable_state_is_a_deadlock_or_breaks_the_books(tmp_path: Path) -> None:
    printed = run(build(tmp_path, "exhaustive.cpp", ("-O2",)))
    assert "states" in printed


def test_core_and_platform_compile_as_device_code(tmp_path: Path) -> None:
    device = SERVICES / "gpu_backend" / "device"
    command = [need("nvcc"), "-std=c++20", "-arch=sm_90", "-rdc=true", "-Werror", "all-warnings", "--cubin", *INCLUDES]
    built = subprocess.run(
        [*command, f"-I{device}", str(device / "kernel.cu"), "-o", str(tmp_path / "kernel.cubin")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
