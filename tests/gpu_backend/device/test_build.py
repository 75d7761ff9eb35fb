"""The device build without a GPU: it compiles and links, by NVRTC as at start, and by nvcc."""

import shutil
import subprocess
from pathlib import Path

import pytest

toolchain = pytest.importorskip("services.gpu_backend.device.toolchain")
try:
    from services.gpu_backend.device import build
except toolchain.ToolchainMissing as missing:
    pytest.skip(f"NOT TESTED: {missing}", allow_module_level=True)

ROOT = Path(__file__).parents[3]
KERNELS = ROOT / "services/gpu_backend/engines/cuda/kernels"
SOURCES = [
    build.SCHEDULER_SOURCE,
    ROOT / "tests/gpu/scheduler/toy.cu",
    ROOT / "bench/gpu/scheduler.cu",
    ROOT / "bench/gpu/scheduler_profile.cu",
    ROOT / "bench/gpu/neighbours.cu",
]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOSTLESS_KERNELS", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.mark.slow  # five compilations
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_nvrtc_compiles_and_nvjitlink_links(source: Path, kernels: Path) -> None:
    code = build.cubin(source)
    assert code[:4] == b"\x7fELF"
    assert [kept.read_bytes() for kept in kernels.iterdir()] == [code], "kept whole, and nothing beside it"


@pytest.mark.slow  # compiles the core
def test_the_scheduler_builds_in_its_other_ways(kernels: Path, tmp_path: Path) -> None:
    from tests.gpu.scheduler.builds import source_of

    assert build.cubin(source_of("all", tmp_path))[:4] == b"\x7fELF"


def test_what_is_kept_is_not_built_again_until_a_header_changes(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.hpp").write_text("constexpr int kOne = 1;\n")
    source = tmp_path / "tiny.cu"
    source.write_text('#include "one.hpp"\nextern "C" __global__ void tiny(int* at) { *at = kOne; }\n')
    first = build.cubin(source, includes=[tmp_path])
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("built again"))
    assert build.cubin(source, includes=[tmp_path]) == first
    monkeypatch.undo()
    monkeypatch.setenv("HOSTLESS_KERNELS", str(kernels))
    (tmp_path / "one.hpp").write_text("constexpr int kOne = 2;\n")
    assert build.cubin(source, includes=[tmp_path]) != first


@pytest.mark.parametrize("source", sorted(KERNELS.glob("*.cu")), ids=lambda source: source.stem)
def test_the_engines_kernels_compile_and_are_kept(source: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = build.plain_cubin(source, build.LEAST_CAPABILITY)
    assert code[:4] == b"\x7fELF"
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("built again"))
    assert build.plain_cubin(source, build.LEAST_CAPABILITY) == code


def test_code_that_does_not_compile_says_where(kernels: Path, tmp_path: Path) -> None:
    source = tmp_path / "bad.cu"
    source.write_text("__global__ void bad() { nonsense(); }\n")
    with pytest.raises(build.BuildFailed, match=r"bad\.cu\(1\)"):
        build.cubin(source)


def test_code_that_does_not_link_names_the_symbol(kernels: Path, tmp_path: Path) -> None:
    source = tmp_path / "loose.cu"
    source.write_text(
        'extern __device__ int elsewhere();\nextern "C" __global__ void f(int* a) { *a = elsewhere(); }\n'
    )
    with pytest.raises(build.BuildFailed, match="elsewhere"):
        build.cubin(source)


def test_a_missing_part_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "_roots", lambda: iter([tmp_path]))
    toolchain._find.cache_clear()
    try:
        with pytest.raises(toolchain.ToolchainMissing, match=r"libcudadevrt\.a.*nvidia-cuda-runtime.*hostless\[cuda\]"):
            toolchain.device_runtime()
        monkeypatch.setattr(toolchain, "_roots", lambda: iter([_with_runtime_only(tmp_path)]))
        with pytest.raises(toolchain.ToolchainMissing, match=r"cuda/atomic.*nvidia-cuda-cccl"):
            toolchain.include_folders()
    finally:
        toolchain._find.cache_clear()


def _with_runtime_only(folder: Path) -> Path:
    (folder / "include").mkdir(exist_ok=True)
    (folder / "include/cuda_device_runtime_api.h").touch()
    return folder


@pytest.mark.slow  # compiles the core
def test_nvcc_compiles_it_without_a_warning_or_a_spill(tmp_path: Path) -> None:
    if (nvcc := shutil.which("nvcc")) is None:
        pytest.skip("NOT TESTED: nvcc is not on this machine")
    command = [nvcc, "-std=c++20", "-arch=sm_90", "-rdc=true", "--cubin", "-Werror", "all-warnings", "-Xptxas", "-v"]
    includes = [f"-I{folder}" for folder in build.OWN_INCLUDES]
    built = subprocess.run(
        [*command, *includes, str(build.SCHEDULER_SOURCE), "-o", str(tmp_path / "kernel.cubin")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert "0 bytes stack frame, 0 bytes spill stores" in built.stderr
