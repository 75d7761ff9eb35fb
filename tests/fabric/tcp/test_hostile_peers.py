"""Peers that send what no peer should, by the bytes on the wire: the owner keeps its memory, and serves the others."""

import contextlib
import random
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.fabric.operations import TrafficClass
from services.fabric.region import MemoryRegion
from services.fabric.rights import Rights
from services.fabric.tcp.agent import TcpPublisher
from services.fabric.tcp.region import TcpRegion
from tests.fabric.tcp.wire import HELLO
from tests.waiting import wait_until

LENGTH = 1 << 20
SESSIONS = 150


@pytest.fixture
def region(publisher: TcpPublisher, tmp_path: Path) -> Iterator[MemoryRegion]:
    """Peers may read it; nothing that comes may change it."""
    with MemoryRegion.create("target", LENGTH, Rights.READ, directory=tmp_path) as region:
        publisher.publish(region)
        region.view[:] = 7
        yield region


def connected(publisher: TcpPublisher) -> socket.socket:
    host, _, port = publisher.address.rpartition(":")
    made = socket.create_connection((host, int(port)), 10)
    made.sendall(HELLO)
    return made


def batch(chance: random.Random, region: MemoryRegion) -> bytes:
    """A head with the right key, mostly, and operations that mostly reach where they may not."""
    edges = (0, 1, 7, 8, 16 << 10, (16 << 10) + 1, LENGTH - 8, LENGTH - 1, LENGTH, LENGTH + 1, 1 << 32, (1 << 62) - 1)
    operations, written = b"", 0
    count = chance.choice((0, 1, 1, 2, 5, 1024))
    for _ in range(count):
        kind, offset = chance.randrange(4), chance.choice(edges)
        first = chance.choice((*edges, (1 << 64) - 1))
        operations += struct.pack("<QQQ", kind | offset << 2, first, chance.getrandbits(64))
        written += first if kind == 1 else 0
    said = chance.choice((count, count, count, count + 1, 1025, (1 << 32) - 1))
    size = chance.choice((written % 2**64, 0, chance.getrandbits(20), chance.getrandbits(64)))
    rkey = region.rkey ^ (chance.random() < 0.1)
    head = struct.pack("<QQIIQ", region.generation, rkey, said, chance.choice((1, 1, 1, 7)), size)
    return head + operations + chance.randbytes(min(size, chance.choice((0, 100, 100_000))))


def test_batches_of_nonsense(publisher: TcpPublisher, region: MemoryRegion) -> None:
    chance = random.Random(11)
    friend = TcpRegion.open(region.descriptor())
    for _ in range(SESSIONS):
        with connected(publisher) as peer, contextlib.suppress(OSError):
            peer.settimeout(0.5)
            data = b"".join(batch(chance, region) for _ in range(chance.randrange(1, 4)))
            peer.sendall(data[: chance.choice((len(data), chance.randrange(1, len(data) + 1)))])
            if chance.random() < 0.5:
                peer.shutdown(socket.SHUT_WR)
            peer.recv(chance.choice((1, 100, 1 << 20)))
        assert friend.read(8, 8) == bytes([7] * 8)
    assert (region.view == 7).all()
    friend.close()


def test_noise(publisher: TcpPublisher, region: MemoryRegion) -> None:
    chance = random.Random(12)
    for _ in range(SESSIONS):
        with connected(publisher) as peer, contextlib.suppress(OSError):
            peer.sendall(chance.randbytes(chance.randrange(1, 5000)))
    friend = TcpRegion.open(region.descriptor())
    assert friend.read(0, LENGTH) == bytes([7] * LENGTH)
    friend.close()


def test_peers_that_take_no_answer_hold_up_nobody(publisher: TcpPublisher, region: MemoryRegion) -> None:
    """Each asks for far more than it takes; the owner keeps what fits a buffer, and goes on."""
    whole = struct.pack("<QQIIQ", region.generation, region.rkey, 1, 1, 0) + struct.pack("<QQQ", 0, LENGTH, 0)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            peer = stack.enter_context(connected(publisher))
            peer.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                peer.sendall(whole * 1000)
        friend = TcpRegion.open(region.descriptor())
        for traffic in TrafficClass:
            assert friend.read(0, LENGTH, traffic) == bytes([7] * LENGTH)
        friend.close()


PUSH = """
import sys, numpy as np
from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.operations import TrafficClass
from services.fabric.transports import open_region
remote = open_region(RegionDescriptor.FromString(bytes.fromhex(sys.argv[1])))
data = np.full(remote.descriptor.length, 9, np.uint8)
remote.write(0, data, TrafficClass.KV)
print("writing", flush=True)
while True:
    remote.write(0, data, TrafficClass.KV)
"""


def test_writers_killed_in_the_middle(publisher: TcpPublisher, tmp_path: Path) -> None:
    with MemoryRegion.create("pushed", 16 << 20, directory=tmp_path) as region:
        publisher.publish(region)
        friend = TcpRegion.open(region.descriptor())
        command = [sys.executable, "-c", PUSH, region.descriptor().SerializeToString().hex()]
        for _ in range(3):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout
                assert writer.stdout.readline() == "writing\n"
                writer.send_signal(signal.SIGKILL)
        wait_until(lambda: publisher.connections == 1)  # theirs end with them
        friend.write(0, np.zeros(16 << 20, np.uint8), TrafficClass.KV)
        assert not region.view.any()
        friend.close()
