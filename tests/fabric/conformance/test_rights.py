"""What is refused, over every transport, and that nothing happened then."""

import pytest

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.errors import FabricError, NotARegion, OutOfBounds, StaleRegion, WrongKey
from services.fabric.hosting import RegionHost
from services.fabric.operations import CompareSwap, Operation, Read, Write
from services.fabric.region import MemoryRegion
from services.fabric.remote_region import RemoteRegion
from services.fabric.rights import Rights
from services.fabric.transports import open_region
from tests.fabric.conformance.benches import Bench
from tests.fabric.conformance.conftest import LENGTH


@pytest.mark.parametrize(
    "operation",
    [
        Read(LENGTH - 7, bytearray(8)),
        Read(LENGTH + 1, bytearray(0)),
        Write(LENGTH - 7, b"12345678"),
        Write(2**63, b"12345678"),
        CompareSwap(LENGTH, 0, 1),
        CompareSwap(LENGTH - 4, 0, 1),
    ],
)
def test_bounds_are_kept_and_named(remote: RemoteRegion, region: MemoryRegion, operation: Operation) -> None:
    with pytest.raises(OutOfBounds, match=rf"region .*bytes \[{operation.offset}, .* of {LENGTH} bytes"):
        remote.post([operation])
    assert not region.view.any()
    remote.write(0, b"1")  # and the region is still of use
    assert region.view[0] == ord("1")


def test_words_must_be_aligned(remote: RemoteRegion) -> None:
    for attempt in (lambda: remote.cas(12, 0, 1), lambda: remote.fetch_add(12, 1)):
        with pytest.raises(ValueError, match="offset 12 of an 8-byte word is not a multiple of 8"):
            attempt()


def test_a_negative_offset_is_no_offset(remote: RemoteRegion) -> None:
    with pytest.raises((TypeError, OutOfBounds)):
        remote.read(-8, 8)


def test_a_wrong_key_is_refused(region: MemoryRegion) -> None:
    wrong = RegionDescriptor()
    wrong.CopyFrom(region.descriptor())
    wrong.rkey ^= 1
    with pytest.raises(WrongKey, match="rkey 0x"):
        open_region(wrong)


def test_a_generation_of_nobody_is_refused(region: MemoryRegion) -> None:
    wrong = RegionDescriptor()
    wrong.CopyFrom(region.descriptor())
    wrong.generation ^= 1
    with pytest.raises(StaleRegion, match=f"generation {wrong.generation} has ended"):
        open_region(wrong)


def test_an_address_of_nobody_is_refused(bench: Bench, region: MemoryRegion) -> None:
    wrong = RegionDescriptor()
    wrong.CopyFrom(region.descriptor())
    wrong.address = "127.0.0.1:1" if ":" in wrong.address else wrong.address + "x"
    with pytest.raises(NotARegion):
        open_region(wrong)


def test_a_closed_region_is_refused_at_the_next_operation(host: RegionHost) -> None:
    region = host.create("closing", LENGTH, Rights.ALL)
    remote = open_region(region.descriptor())
    remote.write(0, b"12345678")
    remote.verify()
    descriptor = region.descriptor()
    region.close()
    for attempt in (lambda: remote.read(0, 8), lambda: remote.write(0, b"x"), lambda: remote.cas(0, 0, 1)):
        with pytest.raises(StaleRegion, match="has ended"):
            attempt()
    with pytest.raises(StaleRegion):
        remote.verify()
    with pytest.raises((StaleRegion, NotARegion)):
        open_region(descriptor)
    remote.close()


def test_a_new_region_of_that_name_is_another(host: RegionHost) -> None:
    old = host.create("again", LENGTH, Rights.ALL)
    descriptor = old.descriptor()
    remote = open_region(descriptor)
    old.close()
    with host.create("again", LENGTH, Rights.ALL) as new:
        with pytest.raises(StaleRegion):
            remote.write(0, b"old")
        with pytest.raises(StaleRegion):
            open_region(descriptor)
        assert not new.view.any()
        fresh = open_region(new.descriptor())
        fresh.write(0, b"new")
        assert new.view[:3].tobytes() == b"new"
        fresh.close()
    remote.close()


def test_closing_twice_is_closing_once(host: RegionHost) -> None:
    region = host.create("twice", LENGTH, Rights.ALL)
    remote = open_region(region.descriptor())
    for _ in range(2):
        remote.close()
    for _ in range(2):
        region.close()
    with pytest.raises((FabricError, IndexError)):
        remote.read(0, 1)
