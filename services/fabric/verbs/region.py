"""A peer's view of a region over RDMA."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric import region_file
from services.fabric.errors import FabricError, NotARegion, OutOfBounds, StaleRegion, Unreachable
from services.fabric.operations import Operation, Read, TrafficClass
from services.fabric.remote_region import RemoteRegion
from services.fabric.rights import Rights, permit, permit_all
from services.fabric.verbs.connection import Connection
from services.fabric.verbs.core import Kind
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
        self._may = int(descriptor.rights)
        self._keys = region_file.keys(descriptor.rkey, descriptor.generation)
        self._name = f"{descriptor.address}, generation {descriptor.generation}"
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
        permit_all(self._name, self._may, operations)
        return self._run(traffic, lambda connection: connection.pair.post(operations, connection.memory))

    def gather(
        self, offsets: Words, lengths: Words, into: NDArray[Any], traffic: TrafficClass = TrafficClass.MODEL
    ) -> None:
        permit(self._name, self._may, Rights.READ)
        self._run(traffic, lambda made: made.pair.move(Kind.READ, offsets, lengths, into, made.memory))

    def scatter(
        self, offsets: Words, lengths: Words, data: NDArray[Any], traffic: TrafficClass = TrafficClass.MODEL
    ) -> None:
        permit(self._name, self._may, Rights.WRITE)
        self._run(traffic, lambda made: made.pair.move(Kind.WRITE, offsets, lengths, data, made.memory))

    def cas_many(self, offsets: Words, expected: Words, desired: Words) -> Words:
        permit(self._name, self._may, Rights.ATOMIC)
        return self._run(
            TrafficClass.MODEL, lambda connection: connection.pair.swap(offsets, expected, desired, connection.memory)
        )

    def verify(self) -> None:
        """Reads the keys in the page before the region: the owner takes them away before it ends the connection."""
        keys = bytearray(region_file.KEYS_BYTES)
        read = (Read(region_file.KEYS_AT, keys),)
        self._run(TrafficClass.MODEL, lambda connection: connection.pair.post(read, connection.header))
        if keys != self._keys:
            raise StaleRegion(f"region {self._name}: it has ended; ask its owner for a new descriptor")

    def close(self) -> None:
        self._closed = True
        for traffic, lock in self._locks.items():
            with lock:
                if (connection := self._connections.pop(traffic, None)) is not None:
                    connection.close()

    def interrupt(self) -> None:
        self._closed = True
        for connection in list(self._connections.values()):
            connection.pair.lose()

    def _run(self, traffic: TrafficClass, act: Callable[[Connection], T]) -> T:
        """By the class's connection, which is made when there is none, or none that is of use."""
        with self._locks[traffic]:
            connection = self._connections.get(traffic)
            try:
                if connection is None or not connection.alive or self._closed:
                    connection = None
                    connection = self._connect(traffic)
                return act(connection)
            except FabricError as error:
                why = error if connection is None else connection.failed(error)
                raise type(why)(f"region {self._name}: {why}") from error
            except IndexError as error:
                raise OutOfBounds(f"region {self._name}: {error}") from None

    def _connect(self, traffic: TrafficClass) -> Connection:
        if self._closed:
            raise FabricError("it was closed here")
        if (dead := self._connections.pop(traffic, None)) is not None:
            dead.close()
        made = self._connections[traffic] = Connection(self._device, self.descriptor, traffic)
        return made
