"""The near side of bench.arbiter: sends what a run asks for, over transport tcp or by plain sockets.

python -m bench.fabric.load '{"descriptor": HEX, "sink": "HOST:PORT", "run": NAME, "seconds": S, "every": S}'
"""

import json
import random
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.operations import Operation, Read, TrafficClass, Write
from services.fabric.tcp.link import ArbiterSettings, Link
from services.fabric.tcp.region import TcpRegion

MESSAGE = 64 << 10
BULK = 1 << 20
WARM_UP_S = 1.5
NEVER = 1e6  # a wait that is never reached: all of the window, always


@dataclass
class Seen:
    """Bytes and, of MODEL, seconds of each message, in the time that counts."""

    model_bytes: int = 0
    kv_bytes: int = 0
    times: list[float] = field(default_factory=list)


class Load:
    def __init__(self, wanted: dict[str, Any]) -> None:
        waits = ArbiterSettings(wait_s=wanted["wait_ms"] / 1e3)
        free = ArbiterSettings(wait_s=NEVER, most_window=64 << 20)
        self.link = Link(free if wanted["run"] == "no arbiter" else waits)
        self.descriptor = RegionDescriptor.FromString(bytes.fromhex(wanted["descriptor"]))
        self.reads = wanted["way"] == "read"
        self.begin = time.monotonic() + WARM_UP_S
        self.end = self.begin + wanted["seconds"]
        self.every = wanted["every"]
        self.seen = Seen()

    def model(self, saturate: bool) -> None:
        region = TcpRegion(self.descriptor, link=self.link)
        chance = random.Random(5)
        operation = self._operation(0, MESSAGE)
        due = time.monotonic()
        while (now := time.monotonic()) < self.end:
            if not saturate:
                due += chance.expovariate(1 / self.every)
                time.sleep(max(0.0, due - now))
            before = time.monotonic()
            region.post((operation,), TrafficClass.MODEL)
            after = time.monotonic()
            if before >= self.begin:
                self.seen.times.append(after - before)
                self.seen.model_bytes += MESSAGE

    def kv(self) -> None:
        region = TcpRegion(self.descriptor, link=self.link)
        operation = self._operation(MESSAGE, BULK)
        while (before := time.monotonic()) < self.end:
            region.post((operation,), TrafficClass.KV)
            after = time.monotonic()
            inside = max(0.0, min(after, self.end) - max(before, self.begin))
            self.seen.kv_bytes += int(BULK * inside / (after - before))

    def _operation(self, offset: int, count: int) -> Operation:
        memory = np.ones(count, np.uint8)
        return Read(offset, memory) if self.reads else Write(offset, memory)


def plain(sink: str, begin: float, end: float) -> int:
    """Bytes that a plain socket gets across in the time that counts, as the other end counts them."""
    host, _, port = sink.rpartition(":")
    data = bytes(1 << 18)
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(f"{begin} {end}\n".encode().ljust(64))
        while time.monotonic() < end:
            peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        return int(peer.recv(64))


def main(wanted: dict[str, Any]) -> dict[str, Any]:
    load = Load(wanted)
    run = wanted["run"]
    if run == "plain socket":
        return {"kv_bytes": plain(wanted["sink"], load.begin, load.end), "model_bytes": 0, "times": []}
    work = []
    saturate = run == "both saturate"
    for _ in range(0 if run == "KV alone" else 2 if saturate else 1):
        work.append(threading.Thread(target=load.model, args=(saturate,)))
    if run != "MODEL alone":
        work.append(threading.Thread(target=load.kv))
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    seen = load.seen
    window = load.link.window
    return {"kv_bytes": seen.kv_bytes, "model_bytes": seen.model_bytes, "times": seen.times, "window": window}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
