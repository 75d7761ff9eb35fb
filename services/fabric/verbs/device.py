"""The RDMA device of this process: context, protection domain, address, and the memory registered with it."""

import os
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from services.fabric.errors import TransportUnavailable
from services.fabric.verbs.library import pyverbs

DEVICE_VARIABLE = "HOSTLESS_RDMA_DEVICE"
GID_VARIABLE = "HOSTLESS_RDMA_GID"
PORT = 1
CLASS = Path("/sys/class/infiniband")
MOST_READS = 16
"""Reads and atomics of one queue pair under way at once, at most; devices keep state for each."""

MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""By ibv_mtu."""


@dataclass(frozen=True, slots=True)
class Registration:
    """Memory that the device may touch. `close` ends that at once. `address` is what peers name."""

    handle: Any
    address: int
    length: int
    local_key: int
    remote_key: int

    def close(self) -> None:
        """Idempotent."""
        self.handle.close()


class RdmaDevice:
    """For any thread. Lives as long as the process: see `local_device`."""

    def __init__(self, name: str, gid_index: int | None = None) -> None:
        """Raises TransportUnavailable if the device can't be opened or its port is down."""
        self.enums = pyverbs("enums")
        self._mr = pyverbs("mr")
        error = pyverbs("pyverbs_error").PyverbsError
        self.lock = threading.RLock()
        """Held to make and end queue pairs and registrations."""
        try:
            self.context = pyverbs("device").Context(name=name)
            self.protection = pyverbs("pd").PD(self.context)
            port = self.context.query_port(PORT)
            attributes = self.context.query_device()
        except error as reason:
            raise TransportUnavailable(f"RDMA device {name}: {reason}; see `hostless fabric check`") from None
        if port.state != self.enums.IBV_PORT_ACTIVE:
            raise TransportUnavailable(f"RDMA device {name}: port {PORT} is not active; see `hostless fabric check`")
        self.name = name
        self.lid = int(port.lid)
        self.mtu = MTU_BYTES[int(port.active_mtu)]
        self.reads = min(MOST_READS, int(attributes.max_qp_rd_atom))
        self.gid_index = default_gid(name) if gid_index is None else gid_index
        self.gid = _gid_bytes(str(self.context.query_gid(PORT, self.gid_index)))

    def register(self, address: int, length: int, access: int) -> Registration:
        """Host memory, pinned from now on. Raises OSError, with what to do about a limit of locked memory."""
        try:
            with self.lock:
                handle = self._mr.MR(self.protection, length, access, address=address)
        except pyverbs("pyverbs_error").PyverbsRDMAError as reason:
            raise OSError(
                f"RDMA device {self.name} does not register {length} bytes ({reason}); if the limit of locked memory "
                "is lower (ulimit -l), raise it"
            ) from None
        return Registration(handle, address, length, handle.lkey, handle.rkey)

    def register_gpu(self, dmabuf: int, offset: int, length: int, access: int) -> Registration:
        """GPU memory, by the file descriptor of its dma-buf (cuMemGetHandleForAddressRange), so that the device reads
        and writes it without the host (D7). Peers address it from 0.

        Raises TransportUnavailable where the device or its driver has no dma-buf registration.
        """
        try:
            with self.lock:
                handle = self._mr.DmaBufMR(self.protection, length, access, dmabuf=dmabuf, offset=offset)
        except pyverbs("pyverbs_error").PyverbsError as reason:
            raise TransportUnavailable(
                f"RDMA device {self.name} does not register GPU memory by dma-buf ({reason}); it takes mlx5 or another "
                "driver with ibv_reg_dmabuf_mr, and NVIDIA's open kernel modules"
            ) from None
        return Registration(handle, 0, length, handle.lkey, handle.rkey)


@lru_cache(maxsize=1)
def local_device() -> RdmaDevice:
    """The device that HOSTLESS_RDMA_DEVICE names, else the machine's first with an active port. Raises
    TransportUnavailable."""
    name = os.environ.get(DEVICE_VARIABLE) or next(iter(active_devices()), "")
    if not name:
        raise TransportUnavailable("transport verbs: no RDMA device with an active port; see `hostless fabric check`")
    index = os.environ.get(GID_VARIABLE, "")
    if index and not index.isdigit():
        raise TransportUnavailable(f"{GID_VARIABLE}: {index!r} is no index of a GID")
    return RdmaDevice(name, int(index) if index else None)


def active_devices() -> list[str]:
    """Names of devices whose port is active, in order."""
    states = sorted(CLASS.glob(f"*/ports/{PORT}/state"))
    return [path.parts[-4] for path in states if "ACTIVE" in path.read_text()]


def gids(device: str) -> dict[int, tuple[str, str]]:
    """(GID, type) by index; the type is like "RoCE v2", empty on InfiniBand."""
    port = CLASS / device / "ports" / str(PORT)
    found = {}
    for path in sorted((port / "gids").iterdir(), key=lambda path: int(path.name)):
        gid = path.read_text().strip()
        if gid.strip("0:"):
            found[int(path.name)] = gid, _read(port / "gid_attrs" / "types" / path.name)
    return found


def default_gid(device: str) -> int:
    """An index: the first of RoCE v2 with an IPv4 address, else the first of RoCE v2, else 0."""
    table = gids(device)
    v2 = [index for index, (_, kind) in table.items() if kind == "RoCE v2"]
    by_ip = [index for index in v2 if table[index][0].startswith("0000:0000:0000:0000:0000:ffff:")]
    return next(iter(by_ip + v2), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # the kernel answers EINVAL for an entry that is not used
        return ""


def _gid_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def gid_text(gid: bytes) -> str:
    """As pyverbs takes it."""
    return ":".join(gid[at : at + 2].hex() for at in range(0, 16, 2))
