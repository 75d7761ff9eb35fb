"""The far side of bench.arbiter and bench.overlap: owns a region, and counts what a plain socket brings.

python -m bench.fabric.owner HOST LENGTH prints the region's descriptor and the socket's address; ends with its input.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.common.child import end, first_line
from bench.fabric.far_side import own
from bench.fabric.shaped_link import ShapedLink


@contextmanager
def owner(link: ShapedLink, length: int) -> Iterator[tuple[str, str]]:
    """At the link's far end, in a process of its own: the region's descriptor, and the socket's address."""
    command = link.far_command(sys.executable, "-m", "bench.fabric.owner", link.address, str(length))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            descriptor, address = first_line(process).split()
            yield descriptor, address
        finally:
            end(process)


def count(listener: socket.socket) -> None:
    while True:
        peer, _ = listener.accept()
        with peer:
            begin, end = (float(word) for word in peer.recv(64, socket.MSG_WAITALL).split())
            total, room = 0, bytearray(1 << 18)
            while got := peer.recv_into(room):
                total += got if begin <= time.monotonic() < end else 0
            peer.sendall(str(total).encode())


if __name__ == "__main__":
    own("arbiter", sys.argv[1], int(sys.argv[2]), count)
