"""Transport `shm`: peers of one host map the region's file, and an operation is a few instructions."""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric import _ring, region_file
from services.fabric.errors import NotARegion, OutOfBounds, StaleRegion, WrongKey
from services.fabric.operations import CompareSwap, Operation, Read, TrafficClass, Write
from services.fabric.remote_region import RemoteRegion


class SharedMemoryRegion(RemoteRegion):
    """A mapped region. The owner, or whoever cleans up after it, revokes rights in the header page."""

    def __init__(self, descriptor: RegionDescriptor, mapping: mmap.mmap) -> None:
        self.descriptor = descriptor
        page = region_file.PAGE_BYTES
        whole = memoryview(mapping)
        self._bytes = whole[page : page + descriptor.length]
        self._rights = whole[region_file.RIGHTS_AT : region_file.RIGHTS_AT + region_file.RIGHTS_BYTES]
        self._held = region_file.RegionHeader(descriptor.length, descriptor.rkey, descriptor.generation).rights()

    @classmethod
    def open(cls, descriptor: RegionDescriptor) -> Self:
        path = Path(descriptor.address)
        fd = region_file.open_file(path)
        try:
            header = region_file.parse(os.pread(fd, region_file.PAGE_BYTES, 0), path)
            _check_rights(path, descriptor, header)
            expected = region_file.PAGE_BYTES + header.length
            if descriptor.length != header.length or os.fstat(fd).st_size < expected:
                raise NotARegion(f"region {path} has {header.length} bytes, its descriptor says {descriptor.length}")
            return cls(descriptor, mmap.mmap(fd, expected))
        finally:
            os.close(fd)

    def verify(self) -> None:
        if self._rights == self._held:
            return
        path = Path(self.descriptor.address)
        header = region_file.RegionHeader(self.descriptor.length, *np.frombuffer(self._rights, np.uint64).tolist())
        _check_rights(path, self.descriptor, header)

    def mapped(self) -> memoryview | None:
        return self._bytes

    def post(self, operations: Sequence[Operation], traffic: TrafficClass = TrafficClass.MODEL) -> list[int | None]:
        with self._touching() as memory:
            return [_run(memory, operation) for operation in operations]

    def gather(
        self,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        into: NDArray[Any],
        traffic: TrafficClass = TrafficClass.MODEL,
    ) -> None:
        with self._touching() as memory:
            _ring.gather(memory, offsets, lengths, into)

    def scatter(
        self,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        data: NDArray[Any],
        traffic: TrafficClass = TrafficClass.MODEL,
    ) -> None:
        with self._touching() as memory:
            _ring.scatter(memory, offsets, lengths, data)

    def cas_many(
        self, offsets: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        found = np.empty(len(offsets), np.uint64)
        with self._touching() as memory:
            _ring.compare_exchange_many(memory, offsets, expected, desired, found)
        return found

    def close(self) -> None:
        self._bytes = memoryview(b"")  # the mapping goes with its last view

    @contextmanager
    def _touching(self) -> Iterator[memoryview]:
        self.verify()
        try:
            yield self._bytes
        except IndexError as error:
            raise OutOfBounds(f"region {self.descriptor.address}: {error}") from None


def _run(memory: memoryview, operation: Operation) -> int | None:
    match operation:
        case Read(offset, into):
            _ring.read_into(memory, offset, into)
        case Write(offset, data):
            _ring.write_from(memory, offset, data)
        case CompareSwap(offset, expected, desired):
            return _ring.compare_exchange_u64(memory, offset, expected, desired)
    return None


def _check_rights(path: Path, held: RegionDescriptor, now: region_file.RegionHeader) -> None:
    if held.generation != now.generation:
        raise StaleRegion(
            f"region {path}: generation {held.generation} has ended"
            + (f"; it is {now.generation} now" if now.generation else "")
            + "; ask its owner for a new descriptor"
        )
    if held.rkey != now.rkey:
        raise WrongKey(f"region {path}: rkey {held.rkey:#x} gives no right to it")
