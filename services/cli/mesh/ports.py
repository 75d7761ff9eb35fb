"""Ports of this machine: find and keep free ones, and name who holds a taken one."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from services.cli.errors import UsageError


@contextmanager
def free_ports(count: int, host: str) -> Iterator[list[int]]:
    """`count` different ports that nothing listens on. Within the block the system gives them to nobody who asks for
    any port, nor to connections; who asks for one by its number, as servers do by SO_REUSEADDR, may listen on it."""
    with ExitStack() as kept:
        sockets = [kept.enter_context(_bound(host, 0)) for _ in range(count)]
        yield [s.getsockname()[1] for s in sockets]


def require_free(host: str, port: int, use: str) -> None:
    """Raises UsageError that names the port, its use and, where the system tells, who holds it."""
    try:
        with _bound(host, port) as s:
            s.listen(1)
    except OverflowError:
        raise UsageError(f"{port} is not a port ({use}); ports are 1 to 65535") from None
    except OSError as error:
        who = holder(port)
        reason = f"is taken by {who}" if who else f"can't be listened on: {error.strerror}"
        hint = (
            "Stop that, or choose another port" if who else "The address must be this machine's, the port one for you"
        )
        raise UsageError(f"port {port} on {host} ({use}) {reason}", hint) from None


def holder(port: int) -> str:
    """Process that listens on a TCP port, as "name (pid N)"; empty when there is none or it is not ours to see."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _lines(Path(table))[1:]:
            fields = line.split()
            listening = fields[3] == "0A"
            if listening and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        if inodes and _holds(process, inodes):
            command = (_lines(process / "comm") or ["?"])[0]
            return f"{command} (pid {process.name})"
    return ""


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM)
    try:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection in TIME_WAIT doesn't take a port
        s.bind((host, port))
    except BaseException:
        s.close()
        raise
    return s


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(_link(fd) in inodes for fd in (process / "fd").iterdir())
    except OSError:  # ended meanwhile, or another user's
        return False


def _link(fd: Path) -> str:
    try:
        return os.readlink(fd)
    except FileNotFoundError:  # closed since it was listed, as that is by which our own are listed
        return ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
