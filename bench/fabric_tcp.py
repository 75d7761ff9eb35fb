"""Transport tcp against plain sockets, and shm against memcpy, in one run.

python -m bench.fabric_tcp [--megabytes 256] [--rounds 9] [--json FILE]

Two processes and the loopback interface. Of each row, the two sides take turns; a figure is the median over the rounds,
a ratio the median of the rounds' ratios. Words and records go by the calls of a ring's client; a plain socket sends as
many bytes in one piece and gets as many back. Plain sockets move pieces of 256 KiB, from and to memory that stays in
cache.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.child import end, first_line
from bench.fabric.peer import PIECE
from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.operations import Read, TrafficClass, Write
from services.fabric.region import MemoryRegion
from services.fabric.remote_region import RemoteRegion
from services.fabric.tcp.region import TcpRegion
from services.fabric.transports import open_region

REGION = 64 << 20
CALLS = 2000
KV = TrafficClass.KV


class Plain:
    """What bench.fabric.peer's plain sockets do."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._at = host, int(port)
        self._room = memoryview(bytearray(PIECE))

    def _ask(self, kind: str, count: int) -> socket.socket:
        peer = socket.create_connection(self._at)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(f"{kind}{count}".encode().ljust(16))
        return peer

    def write(self, count: int) -> None:
        with self._ask("w", count) as peer:
            left = count
            while left:
                left -= peer.send(self._room[: min(left, PIECE)])
            peer.recv(1)

    def read(self, count: int) -> None:
        with self._ask("r", count) as peer:
            left = count
            while left:
                left -= peer.recv_into(self._room[: min(left, PIECE)])

    def ping(self, size: int, calls: int) -> None:
        with self._ask("p", size) as peer:
            for _ in range(calls):
                peer.sendall(self._room[:size])
                peer.recv_into(self._room[:size], size, socket.MSG_WAITALL)


def repeated(call: Callable[[], object], times: int) -> Callable[[], object]:
    return lambda: [call() for _ in range(times)]


def compare(
    name: str, unit: str, amount: float, rounds: int, ours: Callable[[], Any], theirs: Callable[[], Any]
) -> Any:
    """`amount` is what one call moves, in `unit` times a second."""
    pairs = []
    for turn in range(rounds + 1):
        pair = tuple(amount / seconds(do) for do in (ours, theirs))
        if turn:  # the first one warms up
            pairs.append(pair)
    own, other = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
    print(f"{name:38} {own:12,.2f} {other:12,.2f} {unit:8} {ratio:6.2f}", flush=True)
    return {"name": name, "unit": unit, "ours": round(own, 3), "theirs": round(other, 3), "ratio": round(ratio, 3)}


def seconds(do: Callable[[], Any]) -> float:
    before = time.perf_counter()
    do()
    return time.perf_counter() - before


def over_tcp(region: RemoteRegion, plain: Plain, size: int, rounds: int) -> list[Any]:
    data = np.ones(REGION, np.uint8)
    times = size // REGION

    rows = []
    for traffic in TrafficClass:
        for kind, operation, theirs in (("write", Write(0, data), plain.write), ("read", Read(0, data), plain.read)):
            name = f"tcp, {kind} of 64 MiB, {traffic.name}"
            ours = repeated(partial(region.post, (operation,), traffic), times)
            rows.append(compare(name, "GB/s", size / 1e9, rounds, ours, partial(theirs, size)))
    word, words = bytearray(8), bytearray(32 << 10)
    offsets, lengths = np.arange(0, 8192, 128, dtype=np.uint64), np.full(64, 128, np.uint64)
    records = np.zeros(8192, np.uint8)
    calls: tuple[tuple[str, Callable[[], object], int], ...] = (
        ("tcp, read of a word", lambda: region.read_into(0, word), 8),
        ("tcp, swap of a word", lambda: region.cas(0, 0, 0), 8),
        ("tcp, 32 KiB of slot words", lambda: region.read_into(0, words), 32 << 10),
        ("tcp, 64 records of 128 bytes", lambda: region.scatter(offsets, lengths, records), 8192),
    )
    for name, call, bytes_each in calls:
        theirs = partial(plain.ping, bytes_each, CALLS)
        rows.append(compare(name, "calls/s", CALLS, rounds, repeated(call, CALLS), theirs))
    return rows


def over_shm(rounds: int) -> list[Any]:
    rows = []
    data, target = np.ones(REGION, np.uint8), np.zeros(REGION, np.uint8)
    with MemoryRegion.create(f"fabric-shm.{os.getpid()}", REGION) as owned:
        region = open_region(owned.descriptor())
        for size, label in ((REGION, "64 MiB"), (2 << 20, "2 MiB")):
            times = 4 * REGION // size
            piece, there = data[:size], target[:size]
            for kind, operation in (("write", Write(0, piece)), ("read", Read(0, piece))):
                ours = repeated(partial(region.post, (operation,), KV), times)
                copy = repeated(partial(np.copyto, there, piece), times)
                rows.append(compare(f"shm, {kind} of {label}", "GB/s", times * size / 1e9, rounds, ours, copy))
        region.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    size = max(REGION, asked.megabytes << 20)
    print(f"{'':38} {'ours':>12} {'plain':>12} {'':8} {'ratio':>6}")
    command = [sys.executable, "-m", "bench.fabric.peer", str(REGION)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        descriptor, address = first_line(peer).split()
        region = TcpRegion.open(RegionDescriptor.FromString(bytes.fromhex(descriptor)))
        try:
            rows = over_tcp(region, Plain(address), size, asked.rounds)
        finally:
            region.close()
            end(peer)
    rows += over_shm(asked.rounds)
    if asked.json:
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        asked.json.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
