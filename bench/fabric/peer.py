"""The other process of bench.fabric_tcp: owns a region over tcp, and does the same by plain sockets.

python -m bench.fabric.peer LENGTH prints descriptor and address; ends with its input. A plain connection says 16 bytes
first: a letter and a count. w: it sends so many bytes, and gets one back. r: it gets so many. p: it sends and gets
messages of so many bytes in turn, until it has enough.
"""

import socket
import sys
import threading

from bench.fabric.far_side import own

PIECE = 256 << 10


def serve(peer: socket.socket) -> None:
    """Until the peer has enough."""
    room = memoryview(bytearray(PIECE))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with peer:
        while asked := peer.recv(16, socket.MSG_WAITALL):
            kind, count = asked[:1], int(asked[1:])
            left = count
            while kind == b"w" and left:
                left -= peer.recv_into(room[: min(left, PIECE)])
            while kind == b"r" and left:
                left -= peer.send(room[: min(left, PIECE)])
            if kind == b"w":
                peer.sendall(b"!")
            while kind == b"p" and peer.recv_into(room[:count], count, socket.MSG_WAITALL):
                peer.sendall(room[:count])


def accept(listener: socket.socket) -> None:
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=serve, args=(peer,), daemon=True).start()


if __name__ == "__main__":
    own("fabric", "127.0.0.1", int(sys.argv[1]), accept)
