"""A peer's view of a region over RDMA."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric import region_file
from services.fabric.errors import FabricError, NotARegion, OutOfBounds, StaleRegion, Unreachable
from services.fabric.operations import CompareSwap, Operation, Read, TrafficClass
from services.fabric.remote_region import RemoteRegion
from services.fabric.verbs.connection import Connection
from services.fabric.verbs.core import WORD, Kind
from services.fabric.verbs.device import local_device

T = TypeVar("T")
Words = NDArray[np.uint64]


class VerbsRegion(RemoteRegion):
    """A queue pair a traffic class, made when it is first used. For any thread: each class does one post at a time.

    When a connection fails, the operations of that post may have happened in part, in order; the next post
    makes another one, which the owner refuses once the region has ended.
    """

    def __init__(self, descriptor: RegionDescriptor) -> None:
        """Use open()."""
        self.descriptor = descriptor
        self._device = local_device()
        self._connections: dict[TrafficClass, Connection] = {}
        self._locks = {traffic: threading.Lock() for traffic in TrafficClass}
        header = region_file.RegionHeader(descriptor.length, descriptor.rkey, descriptor.generation)
        self._rights = header.rights()
        self._closed = False

    @classmethod
    def open(cls, descriptor: RegionDescriptor) -> Self:
        region = cls(descriptor)
        try:
            region._run(TrafficClass.MODEL, lambda connection: None)
        except Unreachable as error:
            raise NotARegion(str(error)) from None
        return region

    def post(self, operations: Sequence[Operation], traffic: TrafficClass = TrafficClass.MODEL) -> list[int | None]:
        for operation in operations:
            self._check(operation)
        return self._run(traffic, lambda connection: connection.pair.post(operations, connection.memory))

    def gather(
        self, offsets: Words, lengths: Words, into: NDArray[Any], traffic: TrafficClass = TrafficClass.MODEL
    ) -> None:
        self._move(Kind.READ, offsets, lengths, into, traffic)

    def scatter(
        self, offsets: Words, lengths: Words, data: NDArray[Any], traffic: TrafficClass = TrafficClass.MODEL
    ) -> None:
        self._move(Kind.WRITE, offsets, lengths, data, traffic)

    def cas_many(self, offsets: Words, expected: Words, desired: Words) -> Words:
        self._check_many(offsets, np.full(len(offsets), WORD, np.uint64))
        if len(offsets) and int((offsets % np.uint64(WORD)).max()):
            offset = int(offsets[np.flatnonzero(offsets % np.uint64(WORD))[0]])
            raise ValueError(f"offset {offset} of an 8-byte word is not a multiple of 8")
        return self._run(
            TrafficClass.MODEL, lambda connection: connection.pair.swap(offsets, expected, desired, connection.memory)
        )

    def verify(self) -> None:
        """Reads the rights in the page before the region: the owner takes them away before it ends the connection."""
        rights = bytearray(region_file.RIGHTS_BYTES)
        read = (Read(region_file.RIGHTS_AT, rights),)
        self._run(TrafficClass.MODEL, lambda connection: connection.pair.post(read, connection.header))
        if rights != self._rights:
            raise StaleRegion(f"region {self._name}: it has ended; ask its owner for a new descriptor")

    def close(self) -> None:
        self._closed = True
        for traffic, lock in self._locks.items():
            with lock:
                if (connection := self._connections.pop(traffic, None)) is not None:
                    connection.close()

    @property
    def _name(self) -> str:
        return f"{self.descriptor.address}, generation {self.descriptor.generation}"

    def _run(self, traffic: TrafficClass, act: Callable[[Connection], T]) -> T:
        """By the class's connection, which is made when there is none, or none that is of use."""
        try:
            with self._locks[traffic]:
                if self._closed:
                    raise FabricError("it was closed here")
                connection = self._connections.get(traffic)
                if connection is not None and not connection.alive:
                    self._connections.pop(traffic).close()
                    connection = None
                if connection is None:
                    connection = self._connections[traffic] = Connection(self._device, self.descriptor, traffic)
                with connection.using():
                    return act(connection)
        except FabricError as error:
            raise type(error)(f"region {self._name}: {error}") from error

    def _move(self, kind: Kind, offsets: Words, lengths: Words, flat: NDArray[Any], traffic: TrafficClass) -> None:
        self._check_many(offsets, lengths)
        if int(lengths.sum()) != flat.nbytes:
            raise ValueError(f"the pieces have {int(lengths.sum())} bytes, the flat array {flat.nbytes}: don't add up")
        self._run(traffic, lambda connection: connection.pair.move(kind, offsets, lengths, flat, connection.memory))

    def _check(self, operation: Operation) -> None:
        offset, length = operation.offset, self.descriptor.length
        if isinstance(operation, CompareSwap):
            size = WORD
        else:
            memory: Any = operation.into if isinstance(operation, Read) else operation.data
            size = memoryview(memory).nbytes
        if offset < 0 or offset + size > length:
            raise OutOfBounds(f"region {self._name}: bytes [{offset}, +{size}) of a region of {length} bytes")
        if isinstance(operation, CompareSwap) and offset % WORD:
            raise ValueError(f"offset {offset} of an 8-byte word is not a multiple of 8")

    def _check_many(self, offsets: Words, lengths: Words) -> None:
        length = np.uint64(self.descriptor.length)
        outside = (offsets > length) | (lengths > length - np.minimum(offsets, length))
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            piece = f"bytes [{int(offsets[at])}, +{int(lengths[at])})"
            raise OutOfBounds(f"region {self._name}: {piece} of a region of {int(length)} bytes")
