"""Where the parts of CUDA's compiler are that come as pip wheels, or with a toolkit.

What is needed at run time: NVRTC and nvJitLink (found by cuda.bindings itself), the headers of the CUDA
runtime and of libcu++, and libcudadevrt.a, which lets a kernel launch graphs.
"""

import os
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

INSTALL = "pip install 'hostless[cuda]'"


class ToolchainMissing(RuntimeError):
    """A part of CUDA's compiler is not on this machine; the message says which, and what installs it."""


class BuildFailed(RuntimeError):
    """Device code does not compile or link; the message holds the compiler's log."""


def include_folders() -> list[Path]:
    """Folders of headers for device code. Raises ToolchainMissing."""
    runtime = _find("cuda_device_runtime_api.h", ("include",), "nvidia-cuda-runtime")
    libcu = _find("cuda/atomic", ("include/cccl", "include"), "nvidia-cuda-cccl")
    return list(dict.fromkeys([libcu, runtime]))


def device_runtime() -> Path:
    """libcudadevrt.a. Raises ToolchainMissing."""
    name = "libcudadevrt.a"
    return (
        _find(name, ("lib", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"), "nvidia-cuda-runtime")
        / name
    )


@cache
def _find(name: str, folders: tuple[str, ...], wheel: str) -> Path:
    looked = []
    for root in _roots():
        for folder in folders:
            looked.append(root / folder)
            if (looked[-1] / name).exists():
                return looked[-1]
    raise ToolchainMissing(
        f"{name} was not found; it comes with the wheel {wheel} ({INSTALL}) or a CUDA toolkit (set CUDA_HOME). "
        f"Looked in: {', '.join(str(place) for place in looked)}"
    )


def _roots() -> Iterator[Path]:
    """The wheels of this environment before a toolkit: their versions are those that were tested together."""
    for scheme in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))):
        yield from sorted(Path(scheme).glob("nvidia/cu[0-9]*"), reverse=True)
        yield from sorted(Path(scheme).glob("nvidia/cuda_*"))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(variable):
            yield Path(value)
    yield Path("/usr/local/cuda")
