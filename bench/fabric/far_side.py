"""A process at the far side of a bench: owns a region over tcp, and beside it a plain socket."""

import os
import socket
import sys
import threading
from collections.abc import Callable

from services.fabric.hosting import RegionHost
from services.fabric.rights import Rights


def own(name: str, host: str, length: int, accept: Callable[[socket.socket], None]) -> None:
    """Prints the region's descriptor and the socket's address, and ends with its input. `accept` has a thread."""
    with (
        socket.create_server((host, 0)) as listener,
        RegionHost("tcp", f"{host}:0") as regions,
        regions.create(f"{name}.{os.getpid()}", length, Rights.ALL) as region,
    ):
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        address = ":".join(str(part) for part in listener.getsockname())
        print(region.descriptor().SerializeToString().hex(), address, flush=True)
        sys.stdin.read()
