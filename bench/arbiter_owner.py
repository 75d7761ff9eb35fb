"""The far side of bench.arbiter: owns a region, and counts what a plain socket brings.

python -m bench.arbiter_owner HOST LENGTH prints the region's descriptor and the socket's address; ends with its input.
"""

import os
import socket
import sys
import threading
import time

from services.fabric.hosting import RegionHost
from services.fabric.rights import Rights


def count(listener: socket.socket) -> None:
    while True:
        peer, _ = listener.accept()
        with peer:
            begin, end = (float(word) for word in peer.recv(64, socket.MSG_WAITALL).split())
            total, room = 0, bytearray(1 << 18)
            while got := peer.recv_into(room):
                total += got if begin <= time.monotonic() < end else 0
            peer.sendall(str(total).encode())


def main(host: str, length: str) -> None:
    with (
        socket.create_server((host, 0)) as listener,
        RegionHost("tcp", f"{host}:0") as regions,
        regions.create(f"arbiter.{os.getpid()}", int(length), Rights.ALL) as region,
    ):
        threading.Thread(target=count, args=(listener,), daemon=True).start()
        address = ":".join(str(part) for part in listener.getsockname())
        print(region.descriptor().SerializeToString().hex(), address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
