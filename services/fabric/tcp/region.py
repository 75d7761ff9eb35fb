"""A peer's view of a region over TCP."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric import _tcp
from services.fabric.errors import FabricError, NoRight, NotARegion, OutOfBounds, StaleRegion, Unreachable, WrongKey
from services.fabric.lanes import LANES
from services.fabric.operations import Bytes, CompareSwap, FetchAdd, Operation, Read, TrafficClass, Write
from services.fabric.remote_region import RemoteRegion
from services.fabric.rights import Rights, permit, permit_all
from services.fabric.tcp.address import split
from services.fabric.tcp.link import PROCESS_LINK, Link

T = TypeVar("T")

SILENCE_S = 2.0
"""An owner from which nothing comes, and to which nothing goes, for so long is lost."""


class TcpRegion(RemoteRegion):
    """A connection a traffic class, made when it is first used. For any thread: each class does one call at a time.

    After Unreachable, the operations of that call may have happened in part, in order; the next call connects anew,
    and an owner whose region has ended refuses it.
    """

    def __init__(
        self, descriptor: RegionDescriptor, *, link: Link = PROCESS_LINK, silence_s: float = SILENCE_S
    ) -> None:
        """Connects when it is first used; open() does so at once."""
        self.descriptor = descriptor
        self._link, self._silence_s = link, silence_s
        self._may = int(descriptor.rights)
        self._name = str(descriptor.address)
        self._channels: dict[TrafficClass, _tcp.Channel] = {}
        self._locks = {traffic: threading.Lock() for traffic in TrafficClass}
        self._closed = False

    @classmethod
    def open(cls, descriptor: RegionDescriptor) -> Self:
        try:
            split(descriptor.address)
        except ValueError as error:
            raise NotARegion(f"region {descriptor.address!r}: {error}") from None
        region = cls(descriptor)
        try:
            region.verify()
        except Unreachable as error:
            raise NotARegion(str(error)) from None
        return region

    def verify(self) -> None:
        self.post(())

    def post(self, operations: Sequence[Operation], traffic: TrafficClass = TrafficClass.MODEL) -> list[int | None]:
        permit_all(self._name, self._may, operations)
        batch = [_wire(operation) for operation in operations]
        return self._run(traffic, lambda channel: channel.post(batch))

    def gather(
        self,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        into: NDArray[Any],
        traffic: TrafficClass = TrafficClass.MODEL,
    ) -> None:
        permit(self._name, self._may, Rights.READ)
        self._run(traffic, lambda channel: channel.gather(offsets, lengths, into))

    def scatter(
        self,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        data: NDArray[Any],
        traffic: TrafficClass = TrafficClass.MODEL,
    ) -> None:
        permit(self._name, self._may, Rights.WRITE)
        self._run(traffic, lambda channel: channel.scatter(offsets, lengths, data))

    def cas_many(
        self, offsets: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        permit(self._name, self._may, Rights.ATOMIC)
        found = np.empty(len(offsets), np.uint64)
        self._run(TrafficClass.MODEL, lambda channel: channel.swap_many(offsets, expected, desired, found))
        return found

    def close(self) -> None:
        self._closed = True
        for traffic, lock in self._locks.items():
            with lock:
                if (channel := self._channels.pop(traffic, None)) is not None:
                    channel.close()

    def interrupt(self) -> None:
        self._closed = True
        for channel in list(self._channels.values()):
            channel.interrupt()

    def _run(self, traffic: TrafficClass, act: Callable[[_tcp.Channel], T]) -> T:
        """By the class's connection, for one call; what goes wrong with it has the region's name."""
        with self._locks[traffic]:
            if self._closed:
                raise FabricError(f"region {self._name}: it was closed here")
            try:
                return act(self._channels.get(traffic) or self._connect(traffic))
            except _tcp.Lost as error:
                self._channels.pop(traffic, None)
                raise Unreachable(f"region {self._name}: the owner is gone, or the network is down: {error}") from None
            except _tcp.Refused as error:
                raise self._refusal(error.args[0]) from None
            except IndexError as error:
                raise OutOfBounds(f"region {self._name}: {error}") from None

    def _connect(self, traffic: TrafficClass) -> _tcp.Channel:
        held = self.descriptor
        made = self._channels[traffic] = _tcp.Channel(
            *split(held.address),
            held.generation,
            held.rkey,
            held.length,
            held.rights,
            LANES[traffic].traffic_class,
            traffic is TrafficClass.KV,
            self._link,
            self._silence_s,
        )
        return made

    def _refusal(self, status: int) -> FabricError:
        if status == _tcp.STALE:
            return StaleRegion(
                f"region {self._name}: generation {self.descriptor.generation} has ended; "
                "ask its owner for a new descriptor"
            )
        if status == _tcp.WRONG_KEY:
            return WrongKey(f"region {self._name}: rkey {self.descriptor.rkey:#x} gives no right to it")
        if status == _tcp.NO_RIGHT:
            return NoRight(f"region {self._name}: its owner gives fewer rights than its descriptor claims")
        return OutOfBounds(f"region {self._name}: its owner refuses the batch; the descriptor's length is wrong")


def _wire(operation: Operation) -> tuple[int, int, Bytes | int, int]:
    match operation:
        case Read(offset, into):
            return _tcp.READ, offset, into, 0
        case Write(offset, data):
            return _tcp.WRITE, offset, data, 0
        case CompareSwap(offset, expected, desired):
            return _tcp.SWAP, offset, expected, desired
        case FetchAdd(offset, add):
            return _tcp.ADD, offset, add % 2**64, 0
