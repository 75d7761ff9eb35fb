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
from services.fabric.errors import FabricError, NotARegion, OutOfBounds, StaleRegion, WrongKey
from services.fabric.operations import CompareSwap, FetchAdd, Operation, Read, TrafficClass, Write
from services.fabric.remote_region import RemoteRegion
from services.fabric.rights import Rights, permit, permit_all, too_many


class SharedMemoryRegion(RemoteRegion):
    """A mapped region. The owner, or whoever cleans up after it, revokes the keys in the header page.

    Mapped read-only where its owner lets peers do nothing but read. What is mapped at all can be read, so a region
    that peers may only write withholds reading from this class, not from a process that means harm.
    """

    def __init__(self, descriptor: RegionDescriptor, mapping: mmap.mmap) -> None:
        self.descriptor = descriptor
        page = region_file.PAGE_BYTES
        whole = memoryview(mapping)
        self._bytes = whole[page : page + descriptor.length]
        self._keys = whole[region_file.KEYS_AT : region_file.KEYS_AT + region_file.KEYS_BYTES]
        self._may = int(descriptor.rights)
        self._held = region_file.keys(descriptor.rkey, descriptor.generation)

    @classmethod
    def open(cls, descriptor: RegionDescriptor) -> Self:
        path = Path(descriptor.address)
        writable = bool(descriptor.rights & (Rights.WRITE | Rights.ATOMIC))
        fd = region_file.open_file(path, writable)
        try:
            header = region_file.parse(os.pread(fd, region_file.PAGE_BYTES, 0), path)
            _check_keys(descriptor, header.rkey, header.generation)
            if descriptor.rights & ~header.peers_may:
                raise too_many(str(path), descriptor.rights, header.peers_may)
            expected = region_file.PAGE_BYTES + header.length
            if descriptor.length != header.length or os.fstat(fd).st_size < expected:
                raise NotARegion(f"region {path} has {header.length} bytes, its descriptor says {descriptor.length}")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return cls(descriptor, mmap.mmap(fd, expected, access=access))
        finally:
            os.close(fd)

    def verify(self) -> None:
        if self._keys == self._held:
            return
        if not self._keys:
            raise FabricError(f"region {self.descriptor.address}: it was closed here")
        _check_keys(self.descriptor, *np.frombuffer(self._keys, np.uint64).tolist())

    def mapped(self) -> memoryview | None:
        return self._bytes

    def post(self, operations: Sequence[Operation], traffic: TrafficClass = TrafficClass.MODEL) -> list[int | None]:
        permit_all(self.descriptor.address, self._may, operations)
        with self._touching() as memory:
            return [_run(memory, operation) for operation in operations]

    def gather(
        self,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        into: NDArray[Any],
        traffic: TrafficClass = TrafficClass.MODEL,
    ) -> None:
        permit(self.descriptor.address, self._may, Rights.READ)
        with self._touching() as memory:
            _ring.gather(memory, offsets, lengths, into)

    def scatter(
        self,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        data: NDArray[Any],
        traffic: TrafficClass = TrafficClass.MODEL,
    ) -> None:
        permit(self.descriptor.address, self._may, Rights.WRITE)
        with self._touching() as memory:
            _ring.scatter(memory, offsets, lengths, data)

    def cas_many(
        self, offsets: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        permit(self.descriptor.address, self._may, Rights.ATOMIC)
        found = np.empty(len(offsets), np.uint64)
        with self._touching() as memory:
            _ring.compare_exchange_many(memory, offsets, expected, desired, found)
        return found

    def close(self) -> None:
        """Unmaps it; while views that mapped() gave are held, the last one does."""
        self._bytes = self._keys = memoryview(b"")

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
        case FetchAdd(offset, add):
            return _ring.fetch_add_u64(memory, offset, add % 2**64)
    return None


def _check_keys(held: RegionDescriptor, rkey: int, generation: int) -> None:
    """Raises StaleRegion or WrongKey unless these are the descriptor's."""
    path = Path(held.address)
    if held.generation != generation:
        raise StaleRegion(
            f"region {path}: generation {held.generation} has ended"
            + (f"; it is {generation} now" if generation else "")
            + "; ask its owner for a new descriptor"
        )
    if held.rkey != rkey:
        raise WrongKey(f"region {path}: rkey {held.rkey:#x} gives no right to it")
