"""Two network namespaces joined by a link of a given rate, each way: a network, as far as a bench on one machine goes.

Needs root, and iproute2.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

QUEUE_BYTES = 1 << 20
"""Of the link, as deep as switches have it for a port: what lies in it can't be overtaken."""


@dataclass(frozen=True)
class ShapedLink:
    """`near` and `far` are namespaces, `address` is the far end's."""

    near: str
    far: str
    address: str
    realtime: bool = False
    """Commands go before all else on the machine, for benches that use little of it."""

    def near_command(self, *command: str) -> list[str]:
        return self._command(self.near, command)

    def far_command(self, *command: str) -> list[str]:
        return self._command(self.far, command)

    def _command(self, namespace: str, command: tuple[str, ...]) -> list[str]:
        return ["ip", "netns", "exec", namespace, *(("chrt", "--fifo", "10") if self.realtime else ()), *command]


@contextmanager
def shaped_link(megabits: float, delay_ms: float = 0.0, realtime: bool = False) -> Iterator[ShapedLink]:
    """`delay_ms` each way, on top of what the machine takes. Raises CalledProcessError without the rights."""
    own = f"hl{os.getpid()}"
    near, far = f"{own}a", f"{own}b"
    link = ShapedLink(near, far, "10.77.0.2", realtime)
    try:
        for name in (near, far):
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", "name", "wire", "netns", near, "type", "veth", "peer", "name", "wire", "netns", far)
        for name, address in ((near, "10.77.0.1"), (far, link.address)):
            for command in (
                ["ip", "address", "add", f"{address}/24", "dev", "wire"],
                ["ip", "link", "set", "dev", "lo", "up"],
                ["ip", "link", "set", "dev", "wire", "up"],
                # A burst of two packets: a longer one would go out faster than the link, when it was idle before.
                ["tc", "qdisc", "add", "dev", "wire", "root", "handle", "1:", "tbf", "rate", f"{megabits:g}mbit",
                 "burst", "3200", "limit", str(QUEUE_BYTES)],
            ):  # fmt: skip
                _run("ip", "netns", "exec", name, *command)
            if delay_ms:
                delay = ["netem", "delay", f"{delay_ms:g}ms", "limit", "10000"]
                _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "wire", "parent", "1:", *delay)
        yield link
    finally:
        for name in (near, far):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
