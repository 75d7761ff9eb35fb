"""What is tcp's own: frozen owners, regions that end in a transfer, strangers at the port, pipelining."""

import contextlib
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.errors import FabricError, NotARegion, OutOfBounds, StaleRegion, Unreachable
from services.fabric.operations import CompareSwap, Operation, Read, TrafficClass, Write
from services.fabric.region import MemoryRegion
from services.fabric.rights import Rights
from services.fabric.tcp.agent import TcpPublisher
from services.fabric.tcp.link import ArbiterSettings, Link
from services.fabric.tcp.region import TcpRegion
from tests.fabric.conformance.owner import owner
from tests.fabric.tcp.wire import HELLO
from tests.waiting import wait_until

LENGTH = 8 << 20
SOON_S = 2.0


@pytest.fixture
def region(publisher: TcpPublisher, tmp_path: Path) -> Iterator[MemoryRegion]:
    with MemoryRegion.create("tcp", LENGTH, directory=tmp_path) as region:
        publisher.publish(region)
        yield region


@pytest.fixture
def remote(region: MemoryRegion) -> Iterator[TcpRegion]:
    remote = TcpRegion.open(region.descriptor())
    yield remote
    remote.close()


@pytest.mark.parametrize("traffic", list(TrafficClass))
@pytest.mark.parametrize("length", [16 << 10, (16 << 10) + 1, 200_000, LENGTH])
def test_a_call_returns_when_all_has_arrived(
    remote: TcpRegion, region: MemoryRegion, traffic: TrafficClass, length: int
) -> None:
    data = np.empty(length, np.uint8)
    for turn in range(5):
        data[:] = turn + 1
        remote.write(0, data, traffic)
        assert region.view[length - 1] == turn + 1
        assert (region.view[:length] == turn + 1).all()


def test_reads_and_writes_larger_than_all_buffers_in_one_batch(remote: TcpRegion, region: MemoryRegion) -> None:
    half = LENGTH // 2
    new = np.random.default_rng(2).integers(0, 256, half, np.uint8)
    old, back = np.empty(half, np.uint8), np.empty(half, np.uint8)
    region.view[:] = 7
    answers = remote.post([Read(0, old), Write(0, new), CompareSwap(LENGTH - 8, 0, 1), Read(0, back)], TrafficClass.KV)
    assert answers == [None, None, 0x0707070707070707, None]
    assert (old == 7).all()
    assert np.array_equal(back, new)


def test_more_operations_than_a_batch_takes(remote: TcpRegion, region: MemoryRegion) -> None:
    operations: list[Operation] = [CompareSwap(8 * (i % 16), i // 16, i // 16 + 1) for i in range(5000)]
    assert remote.post(operations) == [i // 16 for i in range(5000)]
    assert region.view[:128].view(np.uint64).tolist() == [313] * 8 + [312] * 8


@pytest.mark.parametrize("traffic", list(TrafficClass))
def test_a_frozen_owner_is_lost_and_back_when_it_goes_on(traffic: TrafficClass) -> None:
    with owner("tcp", "frozen", LENGTH) as (process, descriptor):
        remote = TcpRegion(descriptor, silence_s=SOON_S)
        remote.write(0, b"before", traffic)
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(Unreachable, match="nothing moved"):
                remote.write(0, np.zeros(LENGTH, np.uint8), traffic)
            with pytest.raises(Unreachable):  # a new connection: the kernel takes it, the owner does not answer
                remote.read(0, 6, traffic)
        finally:
            process.send_signal(signal.SIGCONT)
        patient = TcpRegion.open(descriptor)
        patient.write(0, b"after", traffic)
        assert patient.read(0, 5, traffic) == b"after"
        patient.close()
        remote.close()


def test_a_region_that_ends_in_the_middle_of_a_transfer(publisher: TcpPublisher, tmp_path: Path) -> None:
    region = MemoryRegion.create("ending", LENGTH, directory=tmp_path)
    publisher.publish(region)
    remote = TcpRegion.open(region.descriptor())
    view, ones = region.view, np.ones(LENGTH, np.uint8)
    begun = threading.Event()
    ends: list[FabricError] = []

    def push() -> None:
        try:
            while True:
                remote.write(0, ones, TrafficClass.KV)
                begun.set()
        except FabricError as error:
            ends.append(error)

    thread = threading.Thread(target=push)
    thread.start()
    assert begun.wait(60)
    region.close()
    view[:] = 0  # nobody writes there any more, whatever is still under way
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(ends[0], StaleRegion | Unreachable)
    assert not view.any()
    with pytest.raises(StaleRegion):
        remote.verify()
    remote.close()


def test_a_descriptor_that_says_too_much_is_refused_by_the_owner(region: MemoryRegion) -> None:
    wrong = RegionDescriptor()
    wrong.CopyFrom(region.descriptor())
    wrong.length += 8
    remote = TcpRegion.open(wrong)
    with pytest.raises(OutOfBounds, match="the descriptor's length is wrong"):
        remote.write(LENGTH, b"12345678")
    remote.write(0, b"12345678")
    remote.close()


def test_a_refused_batch_among_others_changes_nothing(region: MemoryRegion) -> None:
    """Its bytes are read and dropped; what follows on the connection is understood."""
    wrong = RegionDescriptor()
    wrong.CopyFrom(region.descriptor())
    wrong.length += LENGTH
    remote = TcpRegion.open(wrong)
    with pytest.raises(OutOfBounds):
        remote.post([Write(LENGTH - 8, np.ones(1 << 20, np.uint8)), Read(0, bytearray(100))], TrafficClass.KV)
    assert not region.view.any()
    remote.write(0, b"x", TrafficClass.KV)
    assert region.view[0] == ord("x")
    remote.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(100),
        HELLO + struct.pack("<QQIIQ", 1, 2, 1 << 20, 0, 0),
        HELLO + bytes(5),
        b"",
    ],
    ids=["another protocol", "too many operations", "half a head", "nothing"],
)
def test_strangers_at_the_port_do_no_harm(remote: TcpRegion, publisher: TcpPublisher, said: bytes) -> None:
    host, _, port = publisher.address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    remote.write(0, b"fine")
    assert remote.read(0, 4) == b"fine"


@pytest.mark.parametrize(
    ("kind", "given", "claimed", "status"),
    [(0, 2, 2, 5), (1, 1, 1, 5), (2, 3, 3, 5), (3, 3, 3, 5), (0, 1, 3, 5), (0, 1, 1, 0), (3, 4, 4, 0)],
    ids=["read", "write", "swap", "add", "claims more", "may read", "may add"],
)
def test_the_owner_itself_keeps_the_rights(
    publisher: TcpPublisher, tmp_path: Path, kind: int, given: int, claimed: int, status: int
) -> None:
    """Whatever a peer's own code checks: by the bytes that cross the wire."""
    host, _, port = publisher.address.rpartition(":")
    with (
        MemoryRegion.create("wire", 4096, Rights(given), directory=tmp_path) as region,
        socket.create_connection((host, int(port)), 10) as peer,
    ):
        publisher.publish(region)
        peer.sendall(HELLO)
        written = b"12345678" if kind == 1 else b""
        head = struct.pack("<QQIIQ", region.generation, region.rkey, 1, claimed, len(written))
        peer.sendall(head + struct.pack("<QQQ", kind, 8 if kind < 2 else 0, 0) + written)
        said = peer.recv(16, socket.MSG_WAITALL)
        assert struct.unpack("<IIQ", said)[0] == status
        assert not region.view.any()


def test_strangers_make_room_for_peers(remote: TcpRegion, publisher: TcpPublisher, region: MemoryRegion) -> None:
    """Who holds all the connections that an owner takes, and shows no key, keeps nobody out."""
    host, _, port = publisher.address.rpartition(":")
    with contextlib.ExitStack() as strangers:
        for _ in range(300):
            strangers.enter_context(socket.create_connection((host, int(port)), 10))
        fresh = TcpRegion.open(region.descriptor())
        fresh.write(0, b"fine", TrafficClass.KV)
        assert remote.read(0, 4) == b"fine"
        fresh.close()


def test_an_interrupted_call_fails_and_all_that_come() -> None:
    with owner("tcp", "stopped", LENGTH) as (process, descriptor):
        remote = TcpRegion(descriptor, silence_s=60.0)
        remote.write(0, b"before")
        process.send_signal(signal.SIGSTOP)
        ends: list[BaseException] = []

        def push() -> None:
            try:
                remote.write(0, np.zeros(LENGTH, np.uint8))
            except FabricError as error:
                ends.append(error)

        pushing = threading.Thread(target=push)
        pushing.start()
        wait_until(remote._locks[TrafficClass.MODEL].locked)
        remote.interrupt()
        pushing.join(60)
        process.send_signal(signal.SIGCONT)
        assert isinstance(ends[0], FabricError)
        with pytest.raises(FabricError, match="closed here"):
            remote.read(0, 1)
        remote.close()


def test_a_connection_a_traffic_class_and_none_after_the_end(publisher: TcpPublisher, region: MemoryRegion) -> None:
    remotes = [TcpRegion.open(region.descriptor()) for _ in range(5)]
    for remote in remotes:
        remote.write(0, b"x", TrafficClass.KV)
        remote.write(0, b"x", TrafficClass.MODEL)
    assert publisher.connections == 10
    for remote in remotes:
        remote.close()
    last = TcpRegion.open(region.descriptor())
    wait_until(lambda: publisher.connections == 1)
    last.close()


def test_bulk_takes_turns_with_a_link_of_its_own(region: MemoryRegion) -> None:
    """Many KV writers on one link of a small window: all get through."""
    link = Link(ArbiterSettings(most_window=8192))
    data = np.random.default_rng(4).integers(0, 256, LENGTH // 8, np.uint8)

    def push(number: int) -> None:
        remote = TcpRegion(region.descriptor(), link=link)
        remote.write(number * len(data), data, TrafficClass.KV)
        remote.close()

    threads = [threading.Thread(target=push, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert np.array_equal(region.view, np.tile(data, 8))


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1", "127.0.0.1:99999", "/dev/shm/hostless.x", ":1"])
def test_addresses_that_lead_nowhere(address: str) -> None:
    with pytest.raises(NotARegion, match=address):
        TcpRegion.open(RegionDescriptor(transport="tcp", address=address, length=8, rkey=1, generation=1))


def test_an_address_that_is_taken_is_named(publisher: TcpPublisher) -> None:
    with pytest.raises(OSError, match=f"can't listen on {publisher.address}"):
        TcpPublisher(publisher.address)
