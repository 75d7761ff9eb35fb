"""Verbs by the native module `_verbs`: a batch costs one call."""

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import QueuePairEnd
from services.fabric import _verbs
from services.fabric.errors import FabricError, TransportUnavailable, Unreachable
from services.fabric.lanes import Lane
from services.fabric.operations import Atomic, Bytes, CompareSwap, FetchAdd, Operation, Read
from services.fabric.verbs.core import (
    MOST_READS,
    NO_DMABUF,
    RETRIES,
    ROUND_S,
    TIMEOUT,
    WORD,
    Access,
    Far,
    Kind,
    Registration,
    check_end,
    failure,
    locked_memory,
)


class NativeDevice:
    def __init__(self, name: str, gid_index: int) -> None:
        """Raises TransportUnavailable if the device can't be opened or its port is down."""
        try:
            self.handle = _verbs.Device(name)
            self.gid = self.handle.gid(gid_index)
        except OSError as reason:
            raise TransportUnavailable(f"RDMA device {name}: {reason}; see `hostless fabric check`") from None
        if not self.handle.active:
            raise TransportUnavailable(f"RDMA device {name}: its port is not active; see `hostless fabric check`")
        self.name, self.gid_index = name, gid_index
        self.reads = min(MOST_READS, self.handle.reads)

    def register(self, address: int, length: int, access: Access) -> Registration:
        try:
            return self.handle.register(address, length, int(access))
        except OSError as reason:
            raise locked_memory(self.name, length, reason) from None

    def register_gpu(self, dmabuf: int, offset: int, length: int, access: Access) -> Registration:
        try:
            return self.handle.register_dmabuf(dmabuf, offset, length, int(access))
        except OSError as reason:
            raise TransportUnavailable(
                f"RDMA device {self.name} does not register GPU memory by dma-buf ({reason}); {NO_DMABUF}"
            ) from None

    def queue_pair(self, access: Access = Access.NONE, staging_bytes: int = 0) -> "NativeQueuePair":
        try:
            return NativeQueuePair(self, _verbs.Pair(self.handle, int(access), staging_bytes))
        except OSError as reason:
            raise TransportUnavailable(f"RDMA device {self.name} makes no queue pair: {reason}") from None


class NativeQueuePair:
    def __init__(self, device: NativeDevice, pair: "_verbs.Pair") -> None:
        """Use queue_pair()."""
        self._device, self._pair = device, pair
        self._sequence = secrets.randbits(24)

    def end(self) -> QueuePairEnd:
        device = self._device
        return QueuePairEnd(
            number=self._pair.number,
            sequence=self._sequence,
            gid=device.gid,
            lid=device.handle.lid,
            mtu=device.handle.mtu,
            reads=device.reads,
        )

    def connect(self, other: QueuePairEnd, lane: Lane) -> None:
        check_end(other)
        device = self._device
        how = {
            "mtu": min(device.handle.mtu, other.mtu).bit_length() - 8,  # ibv_mtu: 1 is 256 bytes
            "number": other.number,
            "far_sequence": other.sequence,
            "near_sequence": self._sequence,
            "reads": max(1, min(device.reads, other.reads)),
            "timeout": TIMEOUT,
            "retries": RETRIES,
            "lid": other.lid,
            "gid": other.gid,
            "gid_index": device.gid_index,
            "service_level": lane.service_level,
            "traffic_class": lane.traffic_class,
            "flow_label": lane.flow_label,
        }
        try:
            self._pair.connect(device.handle, how)
        except OSError as reason:
            raise FabricError(
                f"RDMA device {device.name} (GID index {device.gid_index}) finds no way to GID {other.gid.hex()}: "
                f"{reason}"
            ) from None

    def post(self, operations: Sequence[Operation], far: Far) -> list[int | None]:
        found = [bytearray(WORD) if isinstance(operation, Atomic) else None for operation in operations]
        batch = [_entry(operation, word) for operation, word in zip(operations, found, strict=True)]
        _finish(self._pair.post(batch, far.address, far.length, far.key))
        return [None if word is None else int.from_bytes(word, "little") for word in found]

    def move(
        self, kind: Kind, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64], flat: NDArray[Any], far: Far
    ) -> None:
        status = self._pair.move(kind is Kind.WRITE, offsets, lengths, flat, far.address, far.length, far.key)
        _finish(status)

    def swap(
        self, offsets: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64], far: Far
    ) -> NDArray[np.uint64]:
        found = np.empty(len(offsets), np.uint64)
        _finish(self._pair.swap(offsets, expected, desired, found, far.address, far.length, far.key))
        return found

    def lose(self) -> None:
        self._pair.lose()

    def close(self) -> None:
        self._pair.close()


def _entry(operation: Operation, word: bytearray | None) -> tuple[int, int, Bytes, int, int]:
    if isinstance(operation, CompareSwap):
        assert word is not None
        return Kind.SWAP, operation.offset, word, operation.expected, operation.desired
    if isinstance(operation, FetchAdd):
        assert word is not None
        return Kind.ADD, operation.offset, word, operation.add % 2**64, 0
    if isinstance(operation, Read):
        return Kind.READ, operation.offset, operation.into, 0, 0
    return Kind.WRITE, operation.offset, operation.data, 0, 0


def _finish(status: int) -> None:
    if status == 0:
        return
    if status == _verbs.LATE:
        raise Unreachable(f"no completion within {ROUND_S:g} s")
    if status == _verbs.LOST:
        raise Unreachable("the connection has ended")
    if status == _verbs.REFUSED:
        raise FabricError("the device refuses the requests")
    raise failure(status)
