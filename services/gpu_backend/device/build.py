"""Compiles device code at start: NVRTC, then nvJitLink with the device runtime. No nvcc, no host compiler.

A result is kept under paths.kernels_dir(), by a hash of everything that went into it.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.common import paths
from services.gpu_backend.device import toolchain
from services.gpu_backend.device.toolchain import INSTALL, BuildFailed, ToolchainMissing

try:
    from cuda.bindings import nvjitlink, nvrtc
except ImportError as missing:
    raise ToolchainMissing(f"the scheduler on the GPU needs CUDA's Python bindings: {INSTALL} ({missing})") from missing

HERE = Path(__file__).parent
OWN_INCLUDES = (HERE, HERE.parent / "scheduler", HERE.parents[1] / "fabric" / "native")
SCHEDULER_SOURCE = HERE / "kernel.cu"
LEAST_CAPABILITY = 90
"""Compute capability 9.0: what device-launched graphs, as they are used here, were seen to work on."""


def cubin(source: Path, capability: int = LEAST_CAPABILITY, includes: Sequence[Path] = OWN_INCLUDES) -> bytes:
    """Machine code of `source`, linked with the device runtime, for compute capability `capability` / 10.

    Takes some seconds the first time. Raises ToolchainMissing, BuildFailed.
    """
    runtime = toolchain.device_runtime()
    options = [f"--gpu-architecture=sm_{capability}", "--std=c++20", "--relocatable-device-code=true"]
    headers = [*includes, *toolchain.include_folders()]
    kept = _place(source, options, includes, str(runtime))
    return _kept(kept, lambda: _link(_compile(source, options, headers), runtime, capability))


def plain_cubin(source: Path, capability: int) -> bytes:
    """As `cubin`, of a source that launches no graphs, and needs no headers but those beside it."""
    options, includes = [f"--gpu-architecture=sm_{capability}", "--std=c++17"], [source.parent]
    return _kept(_place(source, options, includes), lambda: _compile(source, options, includes))


def _kept(place: Path, make: Callable[[], bytes]) -> bytes:
    if place.exists():
        return place.read_bytes()
    code = make()
    _keep(place, code)
    return code


def _place(source: Path, options: Sequence[str], includes: Sequence[Path], *others: str) -> Path:
    return paths.kernels_dir() / f"{source.stem}-{_digest(source, options, includes, *others)}.cubin"


def _digest(source: Path, options: Sequence[str], includes: Sequence[Path], *others: str) -> str:
    """Of the source, every header beside it, and the compiler. (Headers of CUDA have the compiler's version.)"""
    digest = hashlib.sha256(f"{options} {_version()} {others}".encode())
    headers = sorted(file for folder in includes for file in folder.iterdir() if file.suffix in (".hpp", ".cuh"))
    for file in [source, *headers]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def _version() -> str:
    with _explained("NVRTC", "nvidia-cuda-nvrtc"):
        error, major, minor = nvrtc.nvrtcVersion()
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildFailed(f"NVRTC does not tell its version: {error.name}")
    return f"{major}.{minor}"


def _compile(source: Path, options: Sequence[str], includes: Sequence[Path]) -> bytes:
    program = _nvrtc(nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], []))
    try:
        encoded = [option.encode() for option in (*options, *(f"--include-path={folder}" for folder in includes))]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * _nvrtc(nvrtc.nvrtcGetProgramLogSize(program))
            _nvrtc(nvrtc.nvrtcGetProgramLog(program, log))
            raise BuildFailed(f"{source.name} does not compile ({error.name}):\n{_text(log)}")
        code: bytes = b" " * _nvrtc(nvrtc.nvrtcGetCUBINSize(program))
        _nvrtc(nvrtc.nvrtcGetCUBIN(program, code))
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc(answer: Any) -> Any:
    error, *values = answer
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildFailed(f"NVRTC failed: {error.name}")
    return values[0] if values else None


def _link(code: bytes, runtime: Path, capability: int) -> bytes:
    options = [f"-arch=sm_{capability}"]
    library = runtime.read_bytes()
    with _explained("nvJitLink", "nvidia-nvjitlink"):
        linker = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.CUBIN, code, len(code), "scheduler")
        nvjitlink.add_data(linker, nvjitlink.InputType.LIBRARY, library, len(library), "cudadevrt")
        nvjitlink.complete(linker)
        linked = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, linked)
        return bytes(linked)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(linker))
        nvjitlink.get_error_log(linker, log)
        raise BuildFailed(f"device code does not link ({error}):\n{_text(log)}") from error
    finally:
        nvjitlink.destroy(linker)


@contextmanager
def _explained(what: str, wheel: str) -> Iterator[None]:
    """A library that is not there shows when it is first called."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise ToolchainMissing(
            f"{what} can't be loaded; it comes with the wheel {wheel}: {INSTALL} ({error})"
        ) from error


def _text(log: bytes | bytearray) -> str:
    return bytes(log).split(b"\0")[0].decode(errors="replace").strip()


def _keep(place: Path, code: bytes) -> None:
    """Visible whole or not at all; two processes may keep the same at once."""
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(code)
    unfinished.replace(place)
