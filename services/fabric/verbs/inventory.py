"""What this machine has for transport verbs, and what it lacks (D7, D8). Reads /sys, limits and `dcb` only."""

import ctypes.util
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from services.fabric.errors import TransportUnavailable
from services.fabric.lanes import LANES
from services.fabric.operations import TrafficClass
from services.fabric.verbs.device import entry, native_is_built
from services.fabric.verbs.library import HINT, pyverbs

DCB_S = 5.0
LEAST_LOCKED = 1 << 30
"""A ring takes 34 MB and a store's buffer 64 MB unless set otherwise; KV pages take what they are given."""


class Verdict(Enum):
    FINE = "ok"
    ADVICE = "look"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do about it; empty when there is nothing to do."""

    verdict: Verdict
    subject: str
    fact: str
    advice: str = ""


Dcb = Callable[[str, str], Any]
"""What `dcb -j KIND show dev INTERFACE` says, or None where it can't be read."""


def findings(sys: Path = Path("/sys"), dev: Path = Path("/dev"), dcb: Dcb | None = None) -> Iterator[Finding]:
    yield from _libraries()
    yield from _limits()
    yield from _character_devices(dev)
    devices = sorted((sys / "class/infiniband").glob("*"))
    if not devices:
        yield Finding(
            Verdict.MISSING, "devices", "no RDMA device", "load the NIC's driver; for tests: modprobe rdma_rxe"
        )
    for device in devices:
        yield from _device(device, sys, dcb or read_dcb)
    yield _gpu(sys)


def read_dcb(kind: str, interface: str) -> Any:
    if shutil.which("dcb") is None:
        return None
    command = ["dcb", "-j", kind, "show", "dev", interface]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DCB_S, check=False)
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else None
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return None


def _libraries() -> Iterator[Finding]:
    if ctypes.util.find_library("ibverbs") is None:
        yield Finding(Verdict.MISSING, "libibverbs", "not found", "apt install ibverbs-providers")
    if native_is_built():
        yield Finding(Verdict.FINE, "core", "native")
        return
    try:
        pyverbs("device")
    except TransportUnavailable:
        what = f"apt install libibverbs-dev and install Hostless again; or {HINT}"
        yield Finding(Verdict.MISSING, "core", "neither the native core nor pyverbs", what)
    else:
        what = "apt install libibverbs-dev and install Hostless again: an operation then costs a tenth"
        yield Finding(Verdict.ADVICE, "core", "pyverbs", what)


def _limits() -> Iterator[Finding]:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:
        yield Finding(
            Verdict.FINE, "locked memory", "no limit" if limit == resource.RLIM_INFINITY else "root: no limit"
        )
    elif limit < LEAST_LOCKED:
        what = "raise memlock in /etc/security/limits.conf, LimitMEMLOCK= of the unit, or --ulimit memlock=-1"
        yield Finding(Verdict.MISSING, "locked memory", f"at most {limit >> 20} MiB (ulimit -l)", what)
    else:
        yield Finding(Verdict.FINE, "locked memory", f"at most {limit >> 20} MiB")


def _character_devices(dev: Path) -> Iterator[Finding]:
    nodes = sorted((dev / "infiniband").glob("uverbs*"))
    if not nodes:
        what = "modprobe ib_uverbs; in a container: --device /dev/infiniband"
        yield Finding(Verdict.MISSING, "uverbs", f"no {dev}/infiniband/uverbs*", what)
    for node in nodes:
        if not os.access(node, os.R_OK | os.W_OK):
            yield Finding(
                Verdict.MISSING, "uverbs", f"{node} can't be opened", "let the service's user read and write it"
            )


def _device(device: Path, sys: Path, dcb: Dcb) -> Iterator[Finding]:
    for port in sorted((device / "ports").glob("*"), key=lambda path: int(path.name)):
        subject = f"{device.name} port {port.name}"
        state, layer, rate = (entry(port / name) for name in ("state", "link_layer", "rate"))
        fact = f"{state.partition(': ')[2] or state}, {layer}, {rate}"
        if "ACTIVE" not in state:
            yield Finding(Verdict.ADVICE, subject, fact, "bring its link up to use it")
            continue
        yield Finding(Verdict.FINE, subject, fact)
        if layer == "InfiniBand":
            levels = ", ".join(f"{name.value}: SL {lane.service_level}" for name, lane in LANES.items())
            what = f"let the subnet manager map {levels} to lanes, and weigh them (docs/operations.md)"
            yield Finding(Verdict.ADVICE, subject, "its lanes are the subnet manager's to know", what)
        else:
            yield from _ethernet(subject, port, sys, dcb)


def _ethernet(subject: str, port: Path, sys: Path, dcb: Dcb) -> Iterator[Finding]:
    kinds = {path.name: entry(path) for path in (port / "gid_attrs/types").glob("*")}
    v2 = sorted((int(index) for index, kind in kinds.items() if kind == "RoCE v2"))
    if v2:
        yield Finding(Verdict.FINE, subject, f"RoCE v2 at GID index {', '.join(map(str, v2))}")
    else:
        yield Finding(Verdict.MISSING, subject, "no GID of RoCE v2", "give its interface an IP address")
    interface = entry(port / f"gid_attrs/ndevs/{v2[0] if v2 else 0}")
    if not interface:
        return
    yield from _priorities(f"{subject}, {interface}", interface, dcb)
    yield _ecn(f"{subject}, {interface}", sys / "class/net" / interface / "ecn")


def _priorities(subject: str, interface: str, dcb: Dcb) -> Iterator[Finding]:
    model = LANES[TrafficClass.MODEL]
    pfc, app = dcb("pfc", interface), dcb("app", interface)
    if pfc is None or app is None:
        yield Finding(
            Verdict.ADVICE, subject, "PFC and DSCP can't be read here", "see docs/operations.md, by the NIC's tool"
        )
        return
    mapped = {int(dscp): int(priority) for dscp, priority in _pairs(app.get("dscp_prio"))}
    priority = mapped.get(model.dscp)
    if priority is None:
        what = f"dcb app add dev {interface} dscp-prio {model.dscp}:3, and the same on the switch"
        yield Finding(Verdict.ADVICE, subject, f"DSCP {model.dscp} of model traffic has no priority", what)
        return
    yield Finding(Verdict.FINE, subject, f"DSCP {model.dscp} is priority {priority}")
    on = {int(number): bool(value) for number, value in _pairs(pfc.get("prio_pfc"))}
    if on.get(priority):
        yield Finding(Verdict.FINE, subject, f"PFC is on for priority {priority}")
    else:
        what = f"dcb pfc set dev {interface} prio-pfc {priority}:on, and the same on the switch"
        yield Finding(Verdict.ADVICE, subject, f"PFC is off for priority {priority}", what)


def _pairs(told: Any) -> Iterator[tuple[Any, Any]]:
    """dcb prints maps as objects, or as lists of pairs."""
    if isinstance(told, dict):
        yield from told.items()
    for pair in told if isinstance(told, list) else ():
        if isinstance(pair, list) and len(pair) == 2:
            yield pair[0], pair[1]


def _ecn(subject: str, folder: Path) -> Finding:
    switches = sorted(folder.glob("roce_*/enable/*"))
    if not switches:
        return Finding(Verdict.ADVICE, subject, "ECN can't be read here", "see docs/operations.md, by the NIC's tool")
    off = [f"{path.parts[-3]}/{path.name}" for path in switches if entry(path) != "1"]
    if off:
        what = f"echo 1 into {folder}/roce_*/enable/PRIORITY"
        return Finding(Verdict.ADVICE, subject, f"ECN is off for {', '.join(off)}", what)
    return Finding(Verdict.FINE, subject, "ECN is on")


def _gpu(sys: Path) -> Finding:
    if not (sys / "module/nvidia").exists():
        return Finding(Verdict.FINE, "GPU memory", "no NVIDIA driver: only host memory is registered")
    kind = entry(sys / "module/nvidia/version")
    what = "registering GPU memory by dma-buf takes the open kernel modules; nothing here needs it yet"
    return Finding(Verdict.ADVICE, "GPU memory", f"NVIDIA driver {kind}", what)
