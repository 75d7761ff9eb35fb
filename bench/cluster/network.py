"""Nodes of a cluster as network namespaces of one machine, each with a storage link and a compute link of its own.

    store ==storage link (one a node)== node ==compute link== switch        and a management network between all

A storage link ends at an interface of the store's that no other node uses, so the node's end is the bottleneck, as a
node's storage NIC is. Both ends of every link are shaped (tc htb). Needs root, iproute2 and bridges.

A node's data address is on its loopback interface, and everybody routes it over the link that is theirs: the store
over the node's storage link, the other nodes over the switch, and the controller over the management network. So what
is addressed to a node's memory takes the way that the papers say, with nothing to choose in the services.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MTU = 9000
PAYLOAD = (MTU - 52) / (MTU + 14)
"""Of a full frame: what isn't headers. Rates are those of the payload."""
QUEUE_BYTES = 1 << 20
BURST_BYTES = 64 << 10  # the kernel hands packets on in pieces of so much
UNLIMITED = 0.0
STORE, CONTROL = 200, 201
"""Their numbers among the hosts; nodes are 1, 2, ..."""


@dataclass(frozen=True)
class Rates:
    """Bytes/s of payload, each way; UNLIMITED: as fast as the machine is."""

    storage: float
    compute: float


@dataclass(frozen=True)
class Network:
    """Names of its namespaces begin with `prefix`."""

    prefix: str
    nodes: int

    def namespace(self, host: int) -> str:
        return f"{self.prefix}-{ {STORE: 'store', CONTROL: 'control'}.get(host, f'node{host}') }"

    def command(self, host: int, *command: str) -> tuple[str, ...]:
        """The same, run in a host's namespace."""
        return ("ip", "netns", "exec", self.namespace(host), *command)


def data_address(host: int) -> str:
    """Of the memory that a host shows to others."""
    return f"10.77.1.{host}"


def management_address(host: int) -> str:
    return f"10.77.3.{host}"


@contextmanager
def network(nodes: int, rates: Rates) -> Iterator[Network]:
    """Raises CalledProcessError without the rights, or where the kernel lacks a part."""
    _sweep()
    made = Network(f"hldp{os.getpid()}", nodes)
    try:
        _build(made, rates)
        yield made
    finally:
        _delete(name for name in _namespaces() if name.startswith(f"{made.prefix}-"))


def _build(made: Network, rates: Rates) -> None:
    hosts = [*range(1, made.nodes + 1), STORE, CONTROL]
    switch = f"{made.prefix}-switch"
    for name in (switch, *map(made.namespace, hosts)):
        _run("ip", "netns", "add", name)
        _inside(name, "ip", "link", "set", "lo", "up")
    for bridge in ("compute", "management"):
        _inside(switch, "ip", "link", "add", bridge, "mtu", str(MTU), "type", "bridge")
        _inside(switch, "ip", "link", "set", bridge, "up")
    for host in hosts:
        _inside(made.namespace(host), "ip", "address", "add", f"{data_address(host)}/32", "dev", "lo")
        _plug(made.namespace(host), switch, "management", host, f"{management_address(host)}/24", UNLIMITED)
    for node in hosts[:-2]:
        _plug(made.namespace(node), switch, "compute", node, f"10.77.2.{node}/24", rates.compute)
        _storage_link(made, node, rates.storage)
        for other in hosts[:-2]:
            if other != node:
                _route(made.namespace(node), data_address(other), f"10.77.2.{other}")
        _route(made.namespace(node), data_address(CONTROL), management_address(CONTROL))
        _route(made.namespace(CONTROL), data_address(node), management_address(node))
    _route(made.namespace(STORE), data_address(CONTROL), management_address(CONTROL))
    _route(made.namespace(CONTROL), data_address(STORE), management_address(STORE))


def _storage_link(made: Network, node: int, rate: float) -> None:
    near, store = made.namespace(node), made.namespace(STORE)
    subnet = f"10.77.{10 + node}"
    _veth(near, "storage", store, f"node{node}")
    for name, device, address in ((store, f"node{node}", f"{subnet}.1"), (near, "storage", f"{subnet}.2")):
        _up(name, device, f"{address}/24")
        _shape(name, device, rate)
    _route(store, data_address(node), f"{subnet}.2")
    _route(near, data_address(STORE), f"{subnet}.1")


def _plug(name: str, switch: str, bridge: str, host: int, address: str, rate: float) -> None:
    """A host into a bridge; both ends of the wire are shaped."""
    port = f"{bridge[0]}{host}"
    _veth(name, bridge, switch, port)
    _inside(switch, "ip", "link", "set", port, "master", bridge)
    _up(switch, port)
    _up(name, bridge, address)
    for where, device in ((name, bridge), (switch, port)):
        _shape(where, device, rate)


def _veth(near: str, near_device: str, far: str, far_device: str) -> None:
    ends = ["ip", "link", "add", "name", near_device, "mtu", str(MTU), "netns", near, "type", "veth"]
    _run(*ends, "peer", "name", far_device, "mtu", str(MTU), "netns", far)


def _up(name: str, device: str, address: str = "") -> None:
    if address:
        _inside(name, "ip", "address", "add", address, "dev", device)
    _inside(name, "ip", "link", "set", device, "up")


def _route(name: str, target: str, via: str) -> None:
    _inside(name, "ip", "route", "add", f"{target}/32", "via", via)


def _shape(name: str, device: str, rate: float) -> None:
    if rate == UNLIMITED:
        return
    bits = f"{8 * rate / PAYLOAD:.0f}bit"
    queue = ["tc", "qdisc", "add", "dev", device]
    _inside(name, *queue, "root", "handle", "1:", "htb", "default", "1")
    shape = ["htb", "rate", bits, "burst", str(BURST_BYTES), "cburst", str(BURST_BYTES), "quantum", str(BURST_BYTES)]
    _inside(name, "tc", "class", "add", "dev", device, "parent", "1:", "classid", "1:1", *shape)
    _inside(name, *queue, "parent", "1:1", "bfifo", "limit", str(QUEUE_BYTES))


def _inside(name: str, *command: str) -> None:
    _run("ip", "netns", "exec", name, *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _output("ip", "netns", "list").splitlines() if line]


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _delete(names: Iterator[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _sweep() -> None:
    """What a run left that was killed."""
    dead = ((name, re.fullmatch(r"hldp(\d+)-.*", name)) for name in _namespaces())
    _delete(name for name, match in dead if match and not Path(f"/proc/{match[1]}").exists())


def link_bytes(pid: int, devices: Sequence[str]) -> dict[str, tuple[int, int]]:
    """(received, sent) of these devices of the namespace that a process is in, since they were made."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    fields = {name.strip(): values.split() for name, values in (line.split(":", 1) for line in lines)}
    return {device: (int(fields[device][0]), int(fields[device][8])) for device in devices}
