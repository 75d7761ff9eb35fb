"""The RDMA device of this process, and what /sys says of those that there are."""

import importlib
import os
from functools import lru_cache
from pathlib import Path

from services.fabric.errors import TransportUnavailable
from services.fabric.verbs.core import PORT, Device

DEVICE_VARIABLE = "HOSTLESS_RDMA_DEVICE"
GID_VARIABLE = "HOSTLESS_RDMA_GID"
CORE_VARIABLE = "HOSTLESS_RDMA_CORE"
CORES = ("native", "pyverbs")
CLASS = Path("/sys/class/infiniband")


@lru_cache(maxsize=1)
def local_device() -> Device:
    """The device that HOSTLESS_RDMA_DEVICE names, else the machine's first with an active port.

    HOSTLESS_RDMA_CORE, native or pyverbs, says by which library; else it is the native one where that was built.
    Raises TransportUnavailable.
    """
    name = os.environ.get(DEVICE_VARIABLE) or next(iter(active_devices()), "")
    if not name:
        raise TransportUnavailable("transport verbs: no RDMA device with an active port; see `hostless fabric check`")
    index = os.environ.get(GID_VARIABLE, "")
    if index and not index.isdigit():
        raise TransportUnavailable(f"{GID_VARIABLE}: {index!r} is no index of a GID")
    return open_device(name, int(index) if index else default_gid(name))


def open_device(name: str, gid_index: int) -> Device:
    """Raises TransportUnavailable."""
    core = os.environ.get(CORE_VARIABLE) or ("native" if native_is_built() else "pyverbs")
    if core not in CORES:
        raise TransportUnavailable(f"{CORE_VARIABLE}: {core!r} is not one of {', '.join(CORES)}")
    if core == "native":
        if not native_is_built():
            raise TransportUnavailable(f"{CORE_VARIABLE}: no native core; install libibverbs-dev and build again")
        from services.fabric.verbs.native_core import NativeDevice

        return NativeDevice(name, gid_index)
    from services.fabric.verbs.pyverbs_core import PyverbsDevice

    return PyverbsDevice(name, gid_index)


def native_is_built() -> bool:
    """Whether services.fabric._verbs is there, and libibverbs too."""
    try:
        importlib.import_module("services.fabric._verbs")
    except ImportError:
        return False
    return True


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
            found[int(path.name)] = gid, entry(port / "gid_attrs" / "types" / path.name)
    return found


def default_gid(device: str) -> int:
    """An index: the first of RoCE v2 with an IPv4 address, else the first of RoCE v2, else 0."""
    table = gids(device)
    v2 = [index for index, (_, kind) in table.items() if kind == "RoCE v2"]
    by_ip = [index for index in v2 if table[index][0].startswith("0000:0000:0000:0000:0000:ffff:")]
    return next(iter(by_ip + v2), 0)


def entry(path: Path) -> str:
    """Of sysfs; empty for one that is not there, or not used."""
    try:
        return path.read_text().strip()
    except OSError:  # the kernel answers EINVAL for an entry that is not used
        return ""
