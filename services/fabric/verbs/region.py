"""A peer's view of a region over RDMA."""

import threading
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric import region_file
from services.fabric.errors import FabricError, NotARegion, StaleRegion, Unreachable
from services.fabric.operations import CompareSwap, Operation, Read, TrafficClass
from services.fabric.remote_region import RemoteRegion
from services.fabric.verbs import plan
from services.fabric.verbs.connection import STAGING_BYTES, Connection
from services.fabric.verbs.device import local_device
from services.fabric.verbs.queue_pair import Kind, Request

Flat = NDArray[np.uint8]


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
        self._rights = np.frombuffer(
            region_file.RegionHeader(descriptor.length, descriptor.rkey, descriptor.generation).rights(), np.uint8
        )
        self._closed = False

    @classmethod
    def open(cls, descriptor: RegionDescriptor) -> Self:
        region = cls(descriptor)
        try:
            with region._locks[TrafficClass.MODEL]:
                region._connection(TrafficClass.MODEL)
        except Unreachable as error:
            raise NotARegion(f"region {region._name}: {error}") from None
        return region

    def post(self, operations: Sequence[Operation], traffic: TrafficClass = TrafficClass.MODEL) -> list[int | None]:
        views = [_view(operation) for operation in operations]
        lengths = [plan.WORD if view is None else len(view) for view in views]
        plan.check(operations, self.descriptor.length, lengths, self._name)
        answers: list[int | None] = [None] * len(operations)
        with self._locks[traffic]:
            connection = self._connection(traffic)
            for now in plan.rounds(operations, lengths, self.descriptor.length, STAGING_BYTES):
                self._round(connection, now, operations, views, answers)
        return answers

    def verify(self) -> None:
        """Reads the rights in the page before the region: the owner takes them away before it ends the connection."""
        with self._locks[TrafficClass.MODEL]:
            connection = self._connection(TrafficClass.MODEL)
            far = connection.far
            at = far.header_address + region_file.RIGHTS_AT
            request = Request(Kind.READ, connection.staging_at, at, region_file.RIGHTS_BYTES)
            self._run(connection, [request], far.header_key)
            if not np.array_equal(connection.staging[: region_file.RIGHTS_BYTES], self._rights):
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

    def _connection(self, traffic: TrafficClass) -> Connection:
        """With the class's lock held."""
        if self._closed:
            raise FabricError(f"region {self._name}: it was closed here")
        held = self._connections.get(traffic)
        if held is not None:
            if held.alive:
                return held
            self._connections.pop(traffic).close()
        try:
            made = self._connections[traffic] = Connection(self._device, self.descriptor, traffic)
        except FabricError as error:
            raise type(error)(f"region {self._name}: {error}") from error
        return made

    def _round(
        self,
        connection: Connection,
        now: plan.Round,
        operations: Sequence[Operation],
        views: Sequence[Flat | None],
        answers: list[int | None],
    ) -> None:
        staging, far = connection.staging, connection.far
        requests = []
        for piece in now.pieces:
            view, operation = views[piece.index], operations[piece.index]
            if piece.kind is Kind.WRITE:
                assert view is not None
                staging[piece.staged : piece.staged + piece.length] = view[piece.begin : piece.end]
            expected, desired = (
                (operation.expected, operation.desired) if isinstance(operation, CompareSwap) else (0, 0)
            )
            local, remote = connection.staging_at + piece.staged, far.address + piece.offset
            requests.append(Request(piece.kind, local, remote, piece.length, expected, desired))
        self._run(connection, requests, far.key)
        for piece in now.pieces:
            begin = piece.staged + piece.lead
            if piece.kind is Kind.READ:
                into = views[piece.index]
                assert into is not None
                into[piece.begin : piece.end] = staging[begin : begin + piece.end - piece.begin]
            elif piece.kind is Kind.SWAP:
                answers[piece.index] = int(staging[begin : begin + plan.WORD].view(np.uint64)[0])

    def _run(self, connection: Connection, requests: Sequence[Request], key: int) -> None:
        try:
            connection.run(requests, key)
        except FabricError as error:
            raise type(error)(f"region {self._name}: {error}") from error


def _view(operation: Operation) -> Flat | None:
    """An operation's memory as flat bytes; None for a swap, which has none."""
    if isinstance(operation, CompareSwap):
        return None
    memory: Any = operation.into if isinstance(operation, Read) else operation.data
    flat = np.frombuffer(memory, np.uint8) if memoryview(memory).nbytes else np.empty(0, np.uint8)
    if isinstance(operation, Read) and not flat.flags.writeable:
        raise BufferError("what is read into must be writable")
    return flat
