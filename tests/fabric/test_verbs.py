"""What only transport verbs has: rounds of requests, two cores, lanes, registrations, what peers leave behind."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostless.v1.fabric_pb2 import QueuePairEnd
from services.fabric.errors import FabricError, StaleRegion, TransportUnavailable, Unreachable
from services.fabric.hosting import RegionHost
from services.fabric.lanes import LANES
from services.fabric.operations import Atomic, CompareSwap, FetchAdd, Operation, Read, TrafficClass, Write
from services.fabric.rights import Rights
from services.fabric.transports import open_region
from services.fabric.verbs import device as devices
from services.fabric.verbs.core import WORD, Access, Far, Kind, check_end
from services.fabric.verbs.region import VerbsRegion
from services.fabric.verbs.rounds import rounds
from tests.waiting import wait_until

needs_device = pytest.mark.skipif(not devices.active_devices(), reason="needs an RDMA device; tests/rdma boots one")

LENGTH = 1000

operations = st.lists(
    st.one_of(
        st.builds(
            lambda at, size: Read(at, bytearray(min(size, LENGTH - at))), st.integers(0, LENGTH), st.integers(0, 400)
        ),
        st.builds(
            lambda at, size: Write(at, bytes(min(size, LENGTH - at))), st.integers(0, LENGTH), st.integers(0, 400)
        ),
        st.builds(lambda word: CompareSwap(word * 8, 1, 2), st.integers(0, LENGTH // 8 - 1)),
        st.builds(lambda word: FetchAdd(word * 8, 1), st.integers(0, LENGTH // 8 - 1)),
    ),
    max_size=30,
)


@given(batch=operations, staging=st.integers(4, 64).map(lambda words: 8 * words), depth=st.integers(1, 8))
def test_rounds_cover_each_byte_once_and_in_order(batch: list[Operation], staging: int, depth: int) -> None:
    lengths = [_size(operation) for operation in batch]
    seen: list[tuple[int, int]] = []
    for now in rounds(batch, lengths, LENGTH, staging, depth):
        assert 0 < len(now.pieces) <= depth
        used = 0
        for piece in now.pieces:
            operation = batch[piece.index]
            assert piece.staged % WORD == 0
            assert used <= piece.staged
            used = piece.staged + piece.length
            assert used <= staging
            assert piece.offset + piece.length <= LENGTH
            assert piece.offset + piece.lead == operation.offset + piece.begin
            if piece.kind is Kind.READ:
                assert piece.offset % WORD == 0
                assert (piece.offset + piece.length) % WORD == 0 or piece.offset + piece.length == LENGTH
            else:
                assert piece.length == piece.end - piece.begin
            seen.append((piece.index, piece.begin))
            seen.append((piece.index, piece.end))
    expected = [(index, size) for index, size in enumerate(lengths) if size]
    assert seen == sorted(seen)
    assert [(i, end) for i, end in expected] == [
        (index, max(at for other, at in seen if other == index)) for index, _ in expected
    ]
    assert sum(b[1] - a[1] for a, b in zip(seen[::2], seen[1::2], strict=True)) == sum(lengths)


def _size(operation: Operation) -> int:
    if isinstance(operation, Atomic):
        return WORD
    return len(operation.into if isinstance(operation, Read) else operation.data)


def test_classes_travel_apart() -> None:
    model, kv = LANES[TrafficClass.MODEL], LANES[TrafficClass.KV]
    assert model.service_level != kv.service_level
    assert model.dscp != kv.dscp
    assert model.flow_label != kv.flow_label
    assert all(0 <= lane.dscp < 64 and lane.flow_label < 1 << 20 for lane in (model, kv))


@pytest.mark.parametrize(
    "wrong",
    [
        {"gid": b"short"},
        {"mtu": 0},
        {"mtu": 1 << 31},
        {"reads": 0},
        {"lid": 1 << 20},
        {"number": 1 << 24},
        {"sequence": 1 << 30},
    ],
    ids=str,
)
def test_an_end_that_can_not_be_is_refused(wrong: dict[str, Any]) -> None:
    """It came from a peer: what the device would make of it is not to be found out."""
    fine: dict[str, Any] = {"number": 17, "sequence": 5, "gid": bytes(16), "lid": 0, "mtu": 1024, "reads": 16}
    check_end(QueuePairEnd(**fine))
    with pytest.raises(FabricError, match="tells what can't be"):
        check_end(QueuePairEnd(**{**fine, **wrong}))


def test_a_machine_without_a_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: the device is opened once in each."""
    code = "from services.fabric.verbs.device import local_device; local_device()"
    for core in devices.CORES:
        environ = {
            **os.environ,
            devices.DEVICE_VARIABLE: "none0",
            devices.GID_VARIABLE: "0",
            devices.CORE_VARIABLE: core,
        }
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
        assert "TransportUnavailable" in done.stderr.splitlines()[-1], done.stderr


@needs_device
def test_the_class_decides_the_queue_pair() -> None:
    with RegionHost("verbs", "127.0.0.1:0") as host, host.create("classes", 4096, Rights.ALL) as region:
        remote = open_region(region.descriptor())
        assert isinstance(remote, VerbsRegion)
        remote.write(0, b"model", TrafficClass.MODEL)
        remote.write(8, b"kv", TrafficClass.KV)
        remote.write(16, b"kv", TrafficClass.KV)
        assert set(remote._connections) == {TrafficClass.MODEL, TrafficClass.KV}
        assert region.view[:5].tobytes() == b"model"
        remote.close()


@needs_device
def test_the_device_itself_refuses_a_wrong_key_and_a_wrong_place() -> None:
    """Bounds and rights are checked before anything is posted; behind that stands the owner's device."""
    with RegionHost("verbs", "127.0.0.1:0") as host, host.create("keys", 4096, Rights.ALL) as region:
        for key, shift in ((0x5A00, 0), (0, 1 << 20)):
            remote = VerbsRegion.open(region.descriptor())
            connection = remote._connections[TrafficClass.MODEL]
            far = connection.memory
            wrong = Far(far.address + shift, far.length, far.key ^ key)
            with pytest.raises((StaleRegion, Unreachable), match=r"device refuses|has failed") as refusal:
                connection.pair.post((Write(0, b"12345678"),), wrong)
            connection.failed(refusal.value)
            assert not region.view.any()
            remote.write(0, b"12345678")  # by a new queue pair
            assert region.view[:8].tobytes() == b"12345678"
            region.view[:] = 0
            remote.close()


@needs_device
def test_the_header_can_only_be_read() -> None:
    with RegionHost("verbs", "127.0.0.1:0") as host, host.create("header", 4096, Rights.ALL) as region:
        remote = VerbsRegion.open(region.descriptor())
        connection = remote._connections[TrafficClass.MODEL]
        with pytest.raises((StaleRegion, Unreachable), match=r"gives no right|has failed") as refusal:
            connection.pair.post((Write(0, b"12345678"),), connection.header)
        connection.failed(refusal.value)
        remote.verify()
        remote.close()


@needs_device
@pytest.mark.parametrize(
    ("given", "operation"),
    [
        (Rights.READ, Write(0, b"12345678")),
        (Rights.READ, CompareSwap(0, 0, 1)),
        (Rights.READ | Rights.WRITE, FetchAdd(0, 1)),
        (Rights.WRITE, Read(0, bytearray(8))),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, Rights) else str(value),
)
def test_the_device_itself_keeps_the_rights(given: Rights, operation: Operation) -> None:
    """Behind this process's own check stands the registration."""
    with RegionHost("verbs", "127.0.0.1:0") as host, host.create("rights", 4096, given) as region:
        remote = VerbsRegion.open(region.descriptor())
        connection = remote._connections[TrafficClass.MODEL]
        with pytest.raises((StaleRegion, Unreachable), match=r"gives no right|has failed") as refusal:
            connection.pair.post((operation,), connection.memory)
        connection.failed(refusal.value)
        assert not region.view.any()
        remote.close()


@needs_device
def test_a_registration_that_is_no_gpu_memory_says_what_it_takes() -> None:
    device = devices.local_device()
    with open(os.memfd_create("not-a-dmabuf"), "r+b") as file:
        file.truncate(4096)
        with pytest.raises(TransportUnavailable, match="ibv_reg_dmabuf_mr"):
            device.register_gpu(file.fileno(), 0, 4096, Access.LOCAL_WRITE)


@needs_device
def test_memory_that_is_not_there_is_not_registered() -> None:
    with pytest.raises(OSError, match="ulimit -l"):
        devices.local_device().register(1 << 40, 4096, Access.LOCAL_WRITE)


@needs_device
def test_a_peer_that_closes_leaves_nothing_at_the_owner() -> None:
    with RegionHost("verbs", "127.0.0.1:0") as host, host.create("tidy", 4096, Rights.ALL) as region:
        publication = region._publication
        assert publication is not None
        for _ in range(3):
            remote = open_region(region.descriptor())
            assert publication.pairs == 1  # type: ignore[attr-defined]
            remote.close()
            wait_until(lambda: publication.pairs == 0)  # type: ignore[attr-defined]


def test_words_of_numpy() -> None:
    """What rounds() is told of lengths are Python's integers: numpy's would overflow in differences."""
    batch: list[Operation] = [Write(0, np.zeros(16, np.uint8))]
    (only,) = rounds(batch, [16], LENGTH, 64)
    assert [piece.length for piece in only.pieces] == [16]
