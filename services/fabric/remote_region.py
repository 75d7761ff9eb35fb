"""A region of another process, reached by one-sided operations (D5, D7).

The interface is that of RDMA: a peer holds a descriptor, never a pointer, and what it does takes no
code of the owner. So the ring and the KV buffers work the same over every transport.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.operations import Bytes, CompareSwap, FetchAdd, Operation, Read, TrafficClass, Write


class RemoteRegion(ABC):
    """A region of another process.

    Every operation checks bounds, rights, rkey and generation; it raises OutOfBounds, NoRight, WrongKey or StaleRegion.
    Operations of one call, and of successive calls, take effect in order: a peer that sees a later
    write sees all earlier ones. Calls return when their effect is complete; where a transport has to
    wait for a network, call from a thread.
    """

    descriptor: RegionDescriptor

    @classmethod
    @abstractmethod
    def open(cls, descriptor: RegionDescriptor) -> Self:
        """Connects to the region. Raises NotARegion, StaleRegion, WrongKey, or NoRight if the descriptor claims more
        than the owner gives."""

    @abstractmethod
    def post(self, operations: Sequence[Operation], traffic: TrafficClass = TrafficClass.MODEL) -> list[int | None]:
        """Runs a batch by one doorbell. Answers, in order, the word found by each atomic, else None."""

    @abstractmethod
    def verify(self) -> None:
        """Raises StaleRegion or WrongKey if the right to the region has ended."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the region, when what is under way has ended. Idempotent."""

    def interrupt(self) -> None:  # noqa: B027 - where nothing waits, nothing is to be done
        """Makes what waits for a network on another thread fail soon, and what comes too. Never waits."""

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

    def fetch_add(self, offset: int, add: int) -> int:
        """Answers the word found, before `add` came to it."""
        (found,) = self.post((FetchAdd(offset, add),))
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
        self.post([Read(at, piece) for at, piece in pieces(offsets, lengths, into)], traffic)

    def scatter(
        self,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        data: NDArray[Any],
        traffic: TrafficClass = TrafficClass.MODEL,
    ) -> None:
        """Writes one flat array as many pieces, in order."""
        self.post([Write(at, piece) for at, piece in pieces(offsets, lengths, data)], traffic)

    def cas_many(
        self, offsets: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """Many compare-and-swaps in order; answers the words found."""
        triples = zip(offsets.tolist(), expected.tolist(), desired.tolist(), strict=True)
        return np.array(self.post([CompareSwap(*triple) for triple in triples]), np.uint64)


def pieces(
    offsets: NDArray[np.uint64], lengths: NDArray[np.uint64], flat: NDArray[Any]
) -> list[tuple[int, NDArray[np.uint8]]]:
    data = flat.reshape(-1).view(np.uint8)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if total != len(data):
        raise ValueError(f"the pieces have {total} bytes, the flat array {len(data)}")
    spans = zip(offsets.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True)
    return [(offset, data[begin:end]) for offset, begin, end in spans]
