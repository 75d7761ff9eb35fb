"""A region behind the arbiter is the region: what is cut into chunks does what the whole would have done."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric._tcp import ArbiterSettings, Link, Traffic
from services.fabric.errors import OutOfBounds, UnknownTransport, Unreachable
from services.fabric.operations import Atomic, CompareSwap, FetchAdd, Operation, Read, TrafficClass, Write
from services.fabric.region import MemoryRegion
from services.fabric.remote_region import RemoteRegion
from services.fabric.transports import open_region
from services.fabric.verbs import arbitrated
from services.fabric.verbs.arbitrated import ArbitratedRegion, chunks

LENGTH = 100_000
SMALL = ArbiterSettings(most_window=8192)


@pytest.fixture
def region(tmp_path: Path) -> Iterator[MemoryRegion]:
    with MemoryRegion.create("arbitrated", LENGTH, directory=tmp_path) as region:
        yield region


@given(st.lists(st.tuples(st.sampled_from("rwca"), st.integers(0, 999), st.integers(0, 300)), max_size=20),
       st.integers(32, 200))  # fmt: skip
def test_chunks_are_the_operations_in_order(kinds: list[tuple[str, int, int]], size: int) -> None:
    operations: list[Operation] = []
    for kind, offset, length in kinds:
        if kind in "ca":
            operations.append(CompareSwap(offset * 8, 0, 1) if kind == "c" else FetchAdd(offset * 8, 1))
        else:
            operations.append(Read(offset, bytearray(length)) if kind == "r" else Write(offset, bytes(length)))
    ended, at = 0, 0  # whole operations so far, and bytes of the next one
    for batch, count, ends in chunks(operations, lambda: size):
        assert count <= size or len(batch) == 1
        total = 0
        for piece, last in zip(batch, ends, strict=True):
            whole = operations[ended]
            assert type(piece) is type(whole)
            assert piece.offset == whole.offset + at
            length = 8 if isinstance(piece, Atomic) else len(piece.into if isinstance(piece, Read) else piece.data)
            total, at = total + length, at + length
            if last:
                ended, at = ended + 1, 0
            else:
                assert (piece.offset + length) % 8 == 0
        assert total == count
    assert (ended, at) == (len(operations), 0)


def test_random_posts_against_a_shadow(region: MemoryRegion) -> None:
    chance, shadow = random.Random(4), bytearray(LENGTH)
    remote = ArbitratedRegion(open_region(region.descriptor()), Link(SMALL))
    for _ in range(60):
        operations: list[Operation] = []
        expected: list[bytes | int | None] = []
        for _ in range(chance.randrange(1, 12)):
            length, kind = chance.choice((3, 8, 5000, 30_000)), chance.choice("rwca")
            at = chance.randrange(LENGTH - length)
            if kind == "w":
                data = chance.randbytes(length)
                shadow[at : at + length] = data
                operations.append(Write(at, data))
                expected.append(None)
            elif kind == "r":
                operations.append(Read(at, bytearray(length)))
                expected.append(bytes(shadow[at : at + length]))
            elif kind == "a":
                at -= at % 8
                found = int.from_bytes(shadow[at : at + 8], "little")
                shadow[at : at + 8] = ((found + length) % 2**64).to_bytes(8, "little")
                operations.append(FetchAdd(at, length))
                expected.append(found)
            else:
                at -= at % 8
                found = int.from_bytes(shadow[at : at + 8], "little")
                shadow[at : at + 8] = (found ^ 5).to_bytes(8, "little")
                operations.append(CompareSwap(at, found, found ^ 5))
                expected.append(found)
        answers = remote.post(operations, chance.choice(list(TrafficClass)))
        for operation, answer, right in zip(operations, answers, expected, strict=True):
            assert (bytes(operation.into) if isinstance(operation, Read) else answer) == right  # type: ignore[arg-type]
        assert region.view.tobytes() == shadow
    remote.close()


class Counting(RemoteRegion):
    """Remembers bytes and class of each post, and what else was under way on the link."""

    def __init__(self, inner: RemoteRegion) -> None:
        self.inner, self.descriptor = inner, inner.descriptor
        self.posts: list[tuple[TrafficClass, int]] = []
        self.fail = False

    @classmethod
    def open(cls, descriptor: RegionDescriptor) -> "Counting":
        return cls(open_region(descriptor))

    def post(self, operations: Sequence[Operation], traffic: TrafficClass = TrafficClass.MODEL) -> list[int | None]:
        self.posts.append((traffic, sum(len(operation.data) for operation in operations)))  # type: ignore[union-attr,misc]
        if self.fail:
            raise Unreachable("gone")
        return self.inner.post(operations, traffic)

    def verify(self) -> None:
        self.inner.verify()

    def close(self) -> None:
        self.inner.close()


def test_kv_goes_in_chunks_and_model_whole(region: MemoryRegion) -> None:
    inner, link = Counting.open(region.descriptor()), Link(SMALL)
    remote = ArbitratedRegion(inner, link)
    data = np.ones(50_000, np.uint8)
    remote.write(0, data)
    remote.write(0, data, TrafficClass.KV)
    assert inner.posts[0] == (TrafficClass.MODEL, 50_000)
    assert sum(count for _, count in inner.posts[1:]) == 50_000
    assert max(count for _, count in inner.posts[1:]) <= max(link.chunk, 16_384)
    assert len(inner.posts) > 3


def test_what_fails_gives_its_turn_back(region: MemoryRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbitrated, "TURN_S", 0.01)
    inner, link = Counting.open(region.descriptor()), Link(SMALL)
    remote = ArbitratedRegion(inner, link)
    inner.fail = True
    for traffic in TrafficClass:
        with pytest.raises(Unreachable, match="gone"):
            remote.write(0, bytes(100), traffic)
    inner.fail = False
    remote.write(0, bytes(100), TrafficClass.KV)
    assert link.take(Traffic.KV, 1 << 20, 0.01)
    with pytest.raises(Unreachable, match="no turn on the link"):
        remote.write(0, bytes(100), TrafficClass.KV)
    link.done(Traffic.KV, 1 << 20, -1)
    remote.write(0, bytes(100), TrafficClass.KV)


def test_bounds_are_checked_before_the_first_chunk(region: MemoryRegion) -> None:
    remote = ArbitratedRegion(open_region(region.descriptor()), Link(SMALL))
    with pytest.raises(OutOfBounds, match=rf"bytes \[{LENGTH - 7}, \+8\) of a region of {LENGTH} bytes"):
        remote.post([Write(0, b"x" * 50_000), Write(LENGTH - 7, b"12345678")], TrafficClass.KV)
    assert not region.view.any()


def test_the_variable_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(arbitrated.LANES_VARIABLE, "magic")
    with pytest.raises((ValueError, UnknownTransport), match="'magic' is not one of hardware, arbiter"):
        open_region(RegionDescriptor(transport="verbs", address="127.0.0.1:1", length=8))
