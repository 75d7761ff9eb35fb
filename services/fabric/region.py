"""Registered memory (D5, D7): a region that one process owns and others reach by one-sided operations.

The interface is that of RDMA: a peer holds a descriptor, never a pointer, and what it does takes no
code of the owner. So the ring and the KV buffers work the same over every transport.
"""

import fcntl
import mmap
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.common import paths
from services.fabric import region_file
from services.fabric.errors import NotARegion, RegionInUse
from services.fabric.operations import Bytes, CompareSwap, FetchAdd, Operation, Read, TrafficClass, Write

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOCK_WAIT_S = 1.0
"""How long a name that is being cleaned by somebody else is waited for."""


class MemoryRegion:
    """Memory that this process owns, in a file that peers on the host map.

    Verbs: create, close. Closing, or the end of the process in any way, ends every peer's rights: after
    a kill that happens when the name, or any other in the folder, is next created.
    """

    def __init__(self, path: Path, fd: int, mapping: mmap.mmap, header: region_file.RegionHeader) -> None:
        self.path = path
        self._fd = fd
        self._mapping = mapping
        self._header = header

    @classmethod
    def create(cls, name: str, length: int, *, directory: Path | None = None, mode: int = 0o600) -> Self:
        """Makes a zeroed region of `length` bytes, all of it backed by memory now.

        `directory` is paths.shm_dir() unless given; `mode` 0o660 lets peers of the same group in.
        Regions there whose owners are dead are removed. Raises RegionInUse if a live process owns the
        name, OSError if the memory is not there.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"region name {name!r}: use letters, digits, '.', '_' and '-'")
        if length <= 0:
            raise ValueError(f"region {name}: length must be positive, not {length}")
        folder = directory or paths.shm_dir()
        sweep(folder)
        header = region_file.RegionHeader(length, 1 + secrets.randbits(63), 1 + secrets.randbits(63))
        path = folder / f"{region_file.PREFIX}{name}"
        # Without a name until it is locked and whole, so that nobody ever sees half a region.
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.fchmod(fd, mode)
            os.posix_fallocate(fd, 0, region_file.PAGE_BYTES + length)
            mapping = mmap.mmap(fd, region_file.PAGE_BYTES + length)
            mapping[: len(header.pack())] = header.pack()
            _link(fd, path)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, mapping, header)

    @property
    def length(self) -> int:
        return self._header.length

    @property
    def view(self) -> NDArray[np.uint8]:
        """The region's bytes, page-aligned. Views outlive close(), but reach nobody then."""
        return np.frombuffer(self._mapping, np.uint8, self.length, region_file.PAGE_BYTES)

    def descriptor(self) -> RegionDescriptor:
        """What a peer needs to open the region."""
        return RegionDescriptor(
            transport="shm",
            address=str(self.path),
            length=self.length,
            rkey=self._header.rkey,
            generation=self._header.generation,
        )

    def close(self) -> None:
        """Ends all rights and removes the file. Idempotent."""
        if self._fd < 0:
            return
        region_file.revoke(self._mapping)
        if region_file.is_at(self._fd, self.path):
            self.path.unlink(missing_ok=True)
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # the mapping keeps a duplicate of the descriptor
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class RemoteRegion(ABC):
    """A region of another process.

    Every operation checks bounds, rkey and generation, and raises OutOfBounds, WrongKey or StaleRegion.
    Operations of one call, and of successive calls, take effect in order: a peer that sees a later
    write sees all earlier ones. Calls return when their effect is complete; where a transport has to
    wait for a network, call from a thread.
    """

    descriptor: RegionDescriptor

    @classmethod
    @abstractmethod
    def open(cls, descriptor: RegionDescriptor) -> Self:
        """Connects to the region. Raises NotARegion, StaleRegion or WrongKey."""

    @abstractmethod
    def post(self, operations: Sequence[Operation], traffic: TrafficClass = TrafficClass.MODEL) -> list[int | None]:
        """Runs a batch by one doorbell. Answers, in order, the word found by each CompareSwap and FetchAdd."""

    @abstractmethod
    def verify(self) -> None:
        """Raises StaleRegion or WrongKey if the right to the region has ended."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the region. Idempotent."""

    def mapped(self) -> memoryview | None:
        """The region's bytes where this process may touch them in place (shm), else None.

        For bulk I/O straight into the region. The caller calls verify() itself, before and after.
        """
        return None

    def read(self, offset: int, length: int, traffic: TrafficClass = TrafficClass.MODEL) -> bytearray:
        into = bytearray(length)
        self.post((Read(offset, into),), traffic)
        return into

    def read_into(self, offset: int, into: Bytes, traffic: TrafficClass = TrafficClass.MODEL) -> None:
        self.post((Read(offset, into),), traffic)

    def write(self, offset: int, data: Bytes, traffic: TrafficClass = TrafficClass.MODEL) -> None:
        self.post((Write(offset, data),), traffic)

    def cas(self, offset: int, expected: int, desired: int) -> int:
        """Answers the word found: the swap happened if it equals `expected`."""
        (found,) = self.post((CompareSwap(offset, expected, desired),))
        assert found is not None
        return found

    def fetch_add(self, offset: int, addend: int) -> int:
        """Answers the word before the addition."""
        (found,) = self.post((FetchAdd(offset, addend),))
        assert found is not None
        return found

    def gather(
        self,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        into: NDArray[Any],
        traffic: TrafficClass = TrafficClass.MODEL,
    ) -> None:
        """Reads many pieces, one behind the other, into one flat array that they fill exactly."""
        self.post([Read(at, piece) for at, piece in _pieces(offsets, lengths, into)], traffic)

    def scatter(
        self,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        data: NDArray[Any],
        traffic: TrafficClass = TrafficClass.MODEL,
    ) -> None:
        """Writes one flat array as many pieces, in order."""
        self.post([Write(at, piece) for at, piece in _pieces(offsets, lengths, data)], traffic)

    def cas_many(
        self, offsets: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """Many compare-and-swaps in order; answers the words found."""
        triples = zip(offsets.tolist(), expected.tolist(), desired.tolist(), strict=True)
        return np.array(self.post([CompareSwap(*triple) for triple in triples]), np.uint64)


def sweep(directory: Path) -> None:
    """Removes the regions of dead owners. What is not ours to open, or no region, stays."""
    for path in directory.glob(f"{region_file.PREFIX}*"):
        try:
            region_file.remove_dead(path)
        except (NotARegion, PermissionError):
            continue


def _link(fd: int, path: Path) -> None:
    """Gives the nameless file its name. Raises RegionInUse if a live owner keeps the name."""
    give_up = time.monotonic() + _LOCK_WAIT_S
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            try:  # a directory descriptor makes Python call linkat(), which can follow /proc's link
                os.link(f"/proc/self/fd/{fd}", path.name, dst_dir_fd=folder, follow_symlinks=True)
                return
            except FileExistsError:
                if not region_file.remove_dead(path) and time.monotonic() > give_up:
                    raise RegionInUse(
                        f"region {path} belongs to a live process; end it or choose another name"
                    ) from None
            time.sleep(0.01)
    finally:
        os.close(folder)


def _pieces(
    offsets: NDArray[np.uint64], lengths: NDArray[np.uint64], flat: NDArray[Any]
) -> list[tuple[int, NDArray[np.uint8]]]:
    data = flat.reshape(-1).view(np.uint8)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if total != len(data):
        raise ValueError(f"the pieces have {total} bytes, the flat array {len(data)}")
    spans = zip(offsets.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True)
    return [(offset, data[begin:end]) for offset, begin, end in spans]
