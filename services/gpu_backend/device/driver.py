"""CUDA's driver, as far as the scheduler needs it: one device, memory, graphs. Errors are raised, by name.

Only while no scheduler runs: `allocate`, `free`, `copy_*`, `upload`. They may wait for the whole device,
which a scheduler never leaves idle.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.gpu_backend.device import build
from services.gpu_backend.device.toolchain import INSTALL, ToolchainMissing

try:
    from cuda.bindings import driver
except ImportError as missing:
    raise ToolchainMissing(f"the scheduler on the GPU needs CUDA's Python bindings: {INSTALL} ({missing})") from missing

LEAST_DRIVER = 12040
"""CUDA 12.4, as cuDriverGetVersion counts: graphs launched from kernels, with all that they may hold here."""


class CudaError(RuntimeError):
    """A call of the driver failed; the message names it and its error."""


class NoDevice(RuntimeError):
    """This machine has no GPU that the scheduler can live on; the message says what is there and what is needed."""


def call(function: Any, *arguments: Any) -> Any:
    error, *values = function(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(f"{function.__name__} failed: {error.name}")
    return values[0] if len(values) == 1 else values


class Device:
    """One GPU and its primary context, which torch in the same process shares. Current on the calling thread."""

    def __init__(self, ordinal: int = 0) -> None:
        """Raises NoDevice."""
        try:
            call(driver.cuInit, 0)
            count, version = call(driver.cuDeviceGetCount), call(driver.cuDriverGetVersion)
        except (CudaError, RuntimeError) as error:
            raise NoDevice(f"no NVIDIA driver answers on this machine ({error})") from error
        if ordinal >= count:
            raise NoDevice(f"there is no GPU {ordinal}; this machine has {count}")
        self._device = call(driver.cuDeviceGet, ordinal)
        self.name = bytes(call(driver.cuDeviceGetName, 256, self._device)).split(b"\0")[0].decode()
        attributes = driver.CUdevice_attribute
        major = self._attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self._attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.capability = 10 * major + minor
        check_device(self.name, self.capability, version)
        self._context = call(driver.cuDevicePrimaryCtxRetain, self._device)
        self.use()

    def _attribute(self, attribute: Any) -> int:
        return int(call(driver.cuDeviceGetAttribute, attribute, self._device))

    def spare_shared_bytes(self, function: Any) -> int:
        """Shared memory that a block of `function` can be given besides its own. With all of it, it is alone on its
        multiprocessor.
        """
        most = self._attribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        own = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        return most - int(call(driver.cuFuncGetAttribute, own, function))

    def use(self) -> None:
        """Makes the device current on the calling thread."""
        call(driver.cuCtxSetCurrent, self._context)

    def close(self) -> None:
        call(driver.cuDevicePrimaryCtxRelease, self._device)


def check_device(name: str, capability: int, driver_version: int) -> None:
    """Raises NoDevice where graphs can't be launched from the GPU as the scheduler does it."""
    if capability < build.LEAST_CAPABILITY:
        raise NoDevice(
            f"{name} has compute capability {capability / 10:.1f}; the scheduler on the GPU needs "
            f"{build.LEAST_CAPABILITY / 10:.1f} or more (H100, H200 and later)"
        )
    if driver_version < LEAST_DRIVER:
        raise NoDevice(
            f"the NVIDIA driver speaks CUDA {driver_version // 1000}.{driver_version % 1000 // 10}; launching graphs "
            f"from the GPU needs {LEAST_DRIVER // 1000}.{LEAST_DRIVER % 1000 // 10} or more: install a newer driver"
        )


# --- memory ---


def allocate(count: int) -> int:
    """Zeroed device memory; its address."""
    address = int(call(driver.cuMemAlloc, count))
    call(driver.cuMemsetD8, address, 0, count)
    return address


def free(address: int) -> None:
    call(driver.cuMemFree, address)


def memory_info() -> tuple[int, int]:
    """Bytes of the current device: free, in all."""
    free, total = call(driver.cuMemGetInfo)
    return int(free), int(total)


def copy_in(address: int, data: NDArray[Any]) -> None:
    call(driver.cuMemcpyHtoD, address, data.ctypes.data, data.nbytes)


def copy_out(address: int, count: int) -> NDArray[np.uint8]:
    """64-byte aligned, as the C++ side wants its structs."""
    memory = np.empty(count + 64, np.uint8)
    data = memory[-memory.ctypes.data % 64 :][:count]
    call(driver.cuMemcpyDtoH, data.ctypes.data, address, count)
    return data


def handle_of(address: int) -> bytes:
    """Of memory that `allocate` gave: by which other processes of this machine open it."""
    return bytes(call(driver.cuIpcGetMemHandle, address).reserved)


def open_handle(handle: bytes) -> int:
    """The address here of another process's memory, on this GPU or one that it reaches. Also beside a scheduler;
    letting go of it would wait for that one, so it stays until the end of the process."""
    theirs = driver.CUipcMemHandle()
    theirs.reserved = handle
    lazily = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    return int(call(driver.cuIpcOpenMemHandle, theirs, int(lazily)))


class MappedMemory:
    """Zeroed host memory that the GPU reads and writes in place."""

    def __init__(self, count: int) -> None:
        flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
        self._host = int(call(driver.cuMemHostAlloc, count, flags))
        self.address = int(call(driver.cuMemHostGetDevicePointer, self._host, 0))
        self.view: NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(self._host))
        self.view[:] = 0

    def close(self) -> None:
        """Views are dangling afterwards."""
        call(driver.cuMemFreeHost, self._host)


class RegisteredMemory:
    """Memory that the process has already (a mapped region, say), made the GPU's to read and write in place."""

    def __init__(self, view: NDArray[np.uint8]) -> None:
        self._view = view  # keeps the mapping alive
        flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
        call(driver.cuMemHostRegister, view.ctypes.data, view.nbytes, flags)
        self.address = int(call(driver.cuMemHostGetDevicePointer, view.ctypes.data, 0))

    def close(self) -> None:
        call(driver.cuMemHostUnregister, self._view.ctypes.data)


# --- kernels and graphs ---


@dataclass(frozen=True)
class Arguments:
    """A kernel's parameters: bytes of one struct each, or of one scalar."""

    values: Sequence[NDArray[Any]]

    def pointers(self) -> Any:
        return (ctypes.c_void_p * len(self.values))(*(value.ctypes.data for value in self.values))


class Module:
    """Loaded machine code."""

    def __init__(self, cubin: bytes) -> None:
        self._module = call(driver.cuModuleLoadData, cubin)

    def function(self, name: str) -> Any:
        return call(driver.cuModuleGetFunction, self._module, name.encode())

    def variable(self, name: str) -> tuple[int, int]:
        """Address and bytes of a __device__ variable."""
        address, count = call(driver.cuModuleGetGlobal, self._module, name.encode())
        return int(address), int(count)

    def close(self) -> None:
        call(driver.cuModuleUnload, self._module)


class Stream:
    """A stream that waits for no other, the legacy default stream least of all."""

    def __init__(self) -> None:
        self.handle = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def wait(self) -> None:
        call(driver.cuStreamSynchronize, self.handle)

    def done(self) -> bool:
        """Raises CudaError if what ran on it failed."""
        (error,) = driver.cuStreamQuery(self.handle)
        if error not in (driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_NOT_READY):
            raise CudaError(f"the GPU stopped with {error.name}")
        return bool(error == driver.CUresult.CUDA_SUCCESS)

    def launch(self, function: Any, grid: int, block: int, arguments: Arguments) -> None:
        pointers = arguments.pointers()
        call(
            driver.cuLaunchKernel, function, grid, 1, 1, block, 1, 1, 0, self.handle, ctypes.addressof(pointers), 0
        )  # fmt: skip

    def launch_graph(self, executable: Any) -> None:
        call(driver.cuGraphLaunch, executable, self.handle)

    def close(self) -> None:
        call(driver.cuStreamDestroy, self.handle)


class Event:
    """The end of what was on a stream when `after` was called last."""

    def __init__(self) -> None:
        flags = driver.CUevent_flags
        how = int(flags.CU_EVENT_BLOCKING_SYNC) | int(flags.CU_EVENT_DISABLE_TIMING)
        self.handle = call(driver.cuEventCreate, how)

    def after(self, stream: Stream) -> None:
        """Returns when all that is on the stream now is done; the thread sleeps meanwhile. Raises CudaError if it
        failed."""
        call(driver.cuEventRecord, self.handle, stream.handle)
        call(driver.cuEventSynchronize, self.handle)

    def close(self) -> None:
        call(driver.cuEventDestroy, self.handle)


def send_rows(address: int, pitch: int, rows: NDArray[np.uint8], stream: Stream) -> None:
    """rows[i], which may lie apart, to address + i * pitch; on its way when this returns. The rows are registered
    memory, and stay as they are until the stream has waited."""
    count, width = rows.shape
    if count == 1 or width == pitch == rows.strides[0]:
        call(driver.cuMemcpyHtoDAsync, address, rows.ctypes.data, count * width, stream.handle)
        return
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType, copy.dstMemoryType = _HOST, _DEVICE
    copy.srcHost, copy.srcPitch = rows.ctypes.data, rows.strides[0]
    copy.dstDevice, copy.dstPitch = address, pitch
    copy.WidthInBytes, copy.Height = width, count
    call(driver.cuMemcpy2DAsync, copy, stream.handle)


def fetch_rows(address: int, pitch: int, rows: NDArray[np.uint8], stream: Stream) -> None:
    """As send_rows, the other way."""
    count, width = rows.shape
    if count == 1 or width == pitch == rows.strides[0]:
        call(driver.cuMemcpyDtoHAsync, rows.ctypes.data, address, count * width, stream.handle)
        return
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType, copy.dstMemoryType = _DEVICE, _HOST
    copy.srcDevice, copy.srcPitch = address, pitch
    copy.dstHost, copy.dstPitch = rows.ctypes.data, rows.strides[0]
    copy.WidthInBytes, copy.Height = width, count
    call(driver.cuMemcpy2DAsync, copy, stream.handle)


_HOST, _DEVICE = driver.CUmemorytype.CU_MEMORYTYPE_HOST, driver.CUmemorytype.CU_MEMORYTYPE_DEVICE


def copy_within(to: NDArray[np.uint64], source: NDArray[np.uint64], count: int, stream: Stream) -> None:
    """`count` bytes of GPUs' memory from each source to each `to`; on its way when this returns. What is equally far
    apart on both sides goes by one copy."""
    steps, others = np.diff(to), np.diff(source)
    begin = 0
    while begin < len(to):
        end = begin + 1
        while end < len(to) and steps[end - 1] == others[end - 1] == steps[begin] >= count:
            end += 1
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = copy.dstMemoryType = _DEVICE
        copy.srcDevice, copy.dstDevice = int(source[begin]), int(to[begin])
        copy.srcPitch = copy.dstPitch = int(steps[begin]) if end - begin > 1 else count
        copy.WidthInBytes, copy.Height = count, end - begin
        call(driver.cuMemcpy2DAsync, copy, stream.handle)
        begin = end


class Graph:
    """A graph of kernels, one behind the other."""

    def __init__(self) -> None:
        self.handle = call(driver.cuGraphCreate, 0)
        self._last: list[Any] = []

    def add(self, function: Any, grid: int, block: int, arguments: Arguments, shared_bytes: int = 0) -> None:
        largest = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if shared_bytes:
            call(driver.cuFuncSetAttribute, function, largest, shared_bytes)
        pointers = arguments.pointers()
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func = function
        node.gridDimX, node.gridDimY, node.gridDimZ = grid, 1, 1
        node.blockDimX, node.blockDimY, node.blockDimZ = block, 1, 1
        node.sharedMemBytes = shared_bytes
        node.kernelParams = ctypes.addressof(pointers)
        self._last = [call(driver.cuGraphAddKernelNode, self.handle, self._last or None, len(self._last), node)]

    def close(self) -> None:
        call(driver.cuGraphDestroy, self.handle)


def instantiate(graph: Any, stream: Stream) -> Any:
    """An executable that kernels may launch, uploaded. `graph`: a CUgraph, or its address. Raises CudaError."""
    handle = driver.CUgraph(graph) if isinstance(graph, int) else graph
    flag = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
    executable = call(driver.cuGraphInstantiate, handle, int(flag))
    call(driver.cuGraphUpload, executable, stream.handle)
    return executable


def destroy(executable: Any) -> None:
    call(driver.cuGraphExecDestroy, executable)
