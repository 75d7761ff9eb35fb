"""A cable between a ring's owner and a front end that can be cut: what is sent then is kept, and nobody is told."""

import contextlib
import socket
import threading


class Cable:
    """Forwards connections to `far`. Verbs: cut, mend, close."""

    def __init__(self, far: tuple[str, int]) -> None:
        self._far = far
        self._whole = threading.Event()
        self._whole.set()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ":".join(str(part) for part in self._listener.getsockname())
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._whole.set()
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._far)
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._threads.append(threading.Thread(target=self._forward, args=(one, other)))
                    self._threads[-1].start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self._whole.wait()
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
