"""Whether engine cuda can start here, as far as that can be known before anything does."""

import ctypes
import importlib.util
from collections.abc import Iterable
from importlib import metadata

from services.cli.errors import UsageError

LEAST_CAPABILITY = 9
MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
HINT = "Another engine: hostless up --engine torch. What cuda needs: docs/operations.md, On a GPU"


def check(wanted: Iterable[int]) -> None:
    """Raises UsageError unless there are packages for engine cuda, and each of these GPUs (by number)."""
    capabilities = _capabilities()
    if not capabilities:
        raise UsageError("engine cuda: this machine has no NVIDIA GPU, or no driver for it that works", HINT)
    for gpu in wanted:
        if gpu >= len(capabilities):
            raise UsageError(f"engine cuda: there is no GPU {gpu}; this machine shows {len(capabilities)}", HINT)
        if capabilities[gpu] < LEAST_CAPABILITY:
            least = f"needs {LEAST_CAPABILITY}.0 or more (H100, H200 and later)"
            raise UsageError(f"engine cuda: GPU {gpu} has compute capability {capabilities[gpu]}; it {least}", HINT)
    lacking = [name for name in ("torch", "triton", "cuda") if importlib.util.find_spec(name) is None]
    if lacking or metadata.version("torch").endswith("+cpu"):
        what = f"not installed: {', '.join(lacking)}" if lacking else "the torch that is installed is for CPUs only"
        raise UsageError(f"engine cuda: {what}", "make setup, or pip install 'hostless[all,cuda]'; docs/operations.md")


def _capabilities() -> list[int]:
    """The major compute capability of each GPU that this process may use."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, major = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for gpu in range(count.value):
        driver.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, gpu)
        found.append(major.value)
    return found
