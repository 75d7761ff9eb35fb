"""One-sided operations on `shm`, and the generic ones of RemoteRegion against them."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.errors import OutOfBounds
from services.fabric.operations import CompareSwap, Operation, Read, TrafficClass, Write
from services.fabric.region import MemoryRegion
from services.fabric.remote_region import RemoteRegion
from services.fabric.transports import open_region

LENGTH = 256


class PostOnly(RemoteRegion):
    """What a transport gets that implements post() alone: every other operation is built on it."""

    def __init__(self, inner: RemoteRegion) -> None:
        self.inner = inner
        self.descriptor = inner.descriptor
        self.posted: list[tuple[int, TrafficClass]] = []

    @classmethod
    def open(cls, descriptor: RegionDescriptor) -> Self:
        return cls(open_region(descriptor))

    def post(self, operations: Sequence[Operation], traffic: TrafficClass = TrafficClass.MODEL) -> list[int | None]:
        self.posted.append((len(operations), traffic))
        return self.inner.post(operations, traffic)

    def verify(self) -> None:
        self.inner.verify()

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def region(tmp_path: Path) -> Iterator[MemoryRegion]:
    with MemoryRegion.create("ops", LENGTH, directory=tmp_path) as region:
        yield region


def test_a_batch_runs_in_order_and_answers_what_was_found(region: MemoryRegion) -> None:
    remote = open_region(region.descriptor())
    into = bytearray(8)
    answers = remote.post(
        [
            Write(8, (5).to_bytes(8, "little")),
            CompareSwap(8, 5, 9),
            CompareSwap(8, 5, 1),
            Read(8, into),
        ],
        TrafficClass.KV,
    )
    assert answers == [None, 5, 9, None]
    assert int.from_bytes(into, "little") == 9


@pytest.mark.parametrize(
    "operation",
    [
        Read(LENGTH - 7, bytearray(8)),
        Read(LENGTH + 1, bytearray(0)),
        Write(2**63, b"12345678"),
        CompareSwap(LENGTH, 0, 1),
        CompareSwap(LENGTH - 4, 0, 1),
    ],
)
def test_bounds_are_kept_and_named(region: MemoryRegion, operation: Operation) -> None:
    remote = open_region(region.descriptor())
    with pytest.raises(OutOfBounds, match=rf"region .*hostless\.ops: bytes \[{operation.offset}, .* of {LENGTH} bytes"):
        remote.post([operation])
    assert not region.view.any()


def test_words_must_be_aligned(region: MemoryRegion) -> None:
    with pytest.raises(ValueError, match="offset 12 of an 8-byte word is not a multiple of 8"):
        open_region(region.descriptor()).cas(12, 0, 1)


def test_a_negative_offset_is_no_offset(region: MemoryRegion) -> None:
    with pytest.raises(TypeError):
        open_region(region.descriptor()).read(-8, 8)


def test_bulk_operations_touch_all_or_nothing(region: MemoryRegion) -> None:
    remote = open_region(region.descriptor())
    offsets, lengths = np.array([0, LENGTH], np.uint64), np.array([4, 4], np.uint64)
    for data in (np.ones(8, np.uint8), np.ones(9, np.uint8)):
        with pytest.raises((OutOfBounds, ValueError)):
            remote.scatter(offsets, lengths, data)
    words = np.array([0, LENGTH], np.uint64)
    with pytest.raises(OutOfBounds):
        remote.cas_many(words, np.zeros(2, np.uint64), np.ones(2, np.uint64))
    assert not region.view.any()
    with pytest.raises(ValueError, match="don't add up"):
        remote.gather(offsets[:1], lengths[:1], np.empty(5, np.uint8))
    with pytest.raises(ValueError, match="lengths has 8 bytes, not 2 elements of 8"):
        remote.gather(offsets, lengths[:1], np.empty(4, np.uint8))


pieces = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 56)), max_size=8)


@given(pieces=pieces, data=st.binary(min_size=LENGTH, max_size=LENGTH))
def test_bulk_operations_are_what_post_would_do(pieces: list[tuple[int, int]], data: bytes) -> None:
    offsets = np.array([offset for offset, _ in pieces], np.uint64)
    lengths = np.array([length for _, length in pieces], np.uint64)
    flat = np.frombuffer(data[: int(lengths.sum())].ljust(int(lengths.sum()), b"!"), np.uint8)
    seen: list[Any] = []
    with MemoryRegion.create("bulk", LENGTH) as region:
        for remote in (open_region(region.descriptor()), PostOnly.open(region.descriptor())):
            region.view[:] = np.frombuffer(data, np.uint8)
            remote.scatter(offsets, lengths, flat)
            got = np.empty_like(flat)
            remote.gather(offsets, lengths, got)
            words = np.arange(0, LENGTH, 8, dtype=np.uint64)
            expected = region.view.view(np.uint64).copy()
            expected[::2] ^= np.uint64(1)
            found = remote.cas_many(words, expected, expected + np.uint64(5))
            seen.append((got.tobytes(), found.tolist(), region.view.tobytes()))
    assert seen[0] == seen[1]


def test_the_generic_operations_post_once(region: MemoryRegion) -> None:
    remote = PostOnly.open(region.descriptor())
    offsets, lengths = np.array([0, 8], np.uint64), np.array([4, 4], np.uint64)
    remote.scatter(offsets, lengths, np.ones(8, np.uint8), TrafficClass.KV)
    remote.cas_many(offsets, offsets, offsets)
    assert remote.posted == [(2, TrafficClass.KV), (2, TrafficClass.MODEL)]
    assert remote.mapped() is None
    with pytest.raises(ValueError, match="pieces have 8 bytes, the flat array 3"):
        remote.gather(offsets, lengths, np.empty(3, np.uint8))


def test_one_swap_of_many_wins(region: MemoryRegion) -> None:
    remote = open_region(region.descriptor())

    def add() -> None:
        for _ in range(500):
            found = 0
            while (now := remote.cas(0, found, found + 1)) != found:
                found = now

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int.from_bytes(remote.read(0, 8), "little") == 2000


def test_large_copies_arrive_whole(tmp_path: Path) -> None:
    with MemoryRegion.create("large", 1 << 20, directory=tmp_path) as region:
        remote = open_region(region.descriptor())
        data = np.random.default_rng(1).integers(0, 256, (1 << 20) - 13, np.uint8)
        for offset in (0, 3, 8):
            remote.write(offset, data, TrafficClass.KV)
            assert remote.read(offset, len(data), TrafficClass.KV) == data.tobytes()
