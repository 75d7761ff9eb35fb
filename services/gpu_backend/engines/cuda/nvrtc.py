"""CUDA C++ of kernels/, compiled at start (device/build.py), and launched on torch's current stream."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver

from services.gpu_backend.device import build
from services.gpu_backend.device.toolchain import BuildFailed
from services.gpu_backend.engine import EngineError

SOURCES = Path(__file__).parent / "kernels"

Argument = torch.Tensor | int | float


class KernelModule:
    """The kernels of one source file, in the current context. Needs an initialised torch.cuda."""

    def __init__(self, source: str) -> None:
        """Raises ToolchainMissing, and EngineError with the compiler's words."""
        self._name = source
        major, minor = torch.cuda.get_device_capability()
        try:
            code = build.plain_cubin(SOURCES / source, 10 * major + minor)
        except BuildFailed as error:
            raise EngineError(str(error)) from error
        self._module = _check(driver.cuModuleLoadData(code), f"loading {source}")
        self._functions: dict[str, Any] = {}

    def launch(
        self,
        kernel: str,
        grid: int,
        block: int,
        arguments: Sequence[Argument],
        *,
        shared_bytes: int = 0,
        overlap: bool = False,
    ) -> None:
        """Tensors go as pointers, ints as int32, floats as float32.

        shared_bytes: of dynamic shared memory.
        overlap: programmatic dependent launch; the kernel itself must wait for those before it.
        """
        function = self._function(kernel, shared_bytes)
        values, types = zip(*map(_parameter, arguments), strict=True)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = torch.cuda.current_stream().cuda_stream
        if overlap:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        _check(driver.cuLaunchKernelEx(config, function, (values, types), 0), f"launching {kernel}")

    def _function(self, kernel: str, shared_bytes: int) -> Any:
        if kernel not in self._functions:
            found = driver.cuModuleGetFunction(self._module, kernel.encode())
            function = _check(found, f"{self._name}: no kernel {kernel}")
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver.cuFuncSetAttribute(function, most, shared_bytes), f"{kernel}: {shared_bytes} bytes shared")
            self._functions[kernel] = function
        return self._functions[kernel]


def _parameter(value: Argument) -> tuple[Any, Any]:
    if isinstance(value, torch.Tensor):
        return value.data_ptr(), ctypes.c_void_p
    return (value, ctypes.c_int) if isinstance(value, int) else (value, ctypes.c_float)


def _check(answer: tuple[Any, ...], what: str) -> Any:
    """The value of a call of cuda.bindings; raises EngineError if it failed."""
    result, *values = answer
    if int(result) != 0:
        raise EngineError(f"{what}: {result!r}")
    return values[0] if values else None
