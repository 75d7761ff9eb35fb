"""Queue pairs on a link without lanes of its own: the arbiter says who goes first (D8)."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric._tcp import Traffic
from services.fabric.errors import OutOfBounds, Unreachable
from services.fabric.operations import Atomic, Operation, Read, TrafficClass, Write
from services.fabric.remote_region import RemoteRegion
from services.fabric.tcp.link import PROCESS_LINK, Link
from services.fabric.verbs.region import VerbsRegion

LANES_VARIABLE = "HOSTLESS_RDMA_LANES"
LANES_BY = ("hardware", "arbiter")
TURN_S = 10.0
WORD = 8
CLASSES = {TrafficClass.MODEL: Traffic.MODEL, TrafficClass.KV: Traffic.KV}


class ArbitratedRegion(RemoteRegion):
    """Another region, whose posts take turns. KV goes in chunks, each under way alone; MODEL goes as it comes.

    So a KV post of more than a chunk is no one batch any more: it may fail after a part of it.
    """

    def __init__(self, inner: RemoteRegion, link: Link = PROCESS_LINK) -> None:
        self.descriptor = inner.descriptor
        self._inner, self._link = inner, link
        self._took: deque[float] = deque(maxlen=8)
        self._idle_s = math.inf

    @classmethod
    def open(cls, descriptor: RegionDescriptor) -> Self:
        return cls(VerbsRegion.open(descriptor))

    def post(self, operations: Sequence[Operation], traffic: TrafficClass = TrafficClass.MODEL) -> list[int | None]:
        if traffic is TrafficClass.MODEL:
            return self._turn(operations, sum(map(_bytes, operations)), traffic)
        self._check(operations)
        answers: list[int | None] = []
        for batch, count, ends in chunks(operations, lambda: self._link.chunk):
            found = self._turn(batch, count, traffic)
            answers += [word for word, last in zip(found, ends, strict=True) if last]
        return answers

    def verify(self) -> None:
        self._inner.verify()

    def close(self) -> None:
        self._inner.close()

    def interrupt(self) -> None:
        self._inner.interrupt()

    def mapped(self) -> memoryview | None:
        return self._inner.mapped()

    def _turn(self, batch: Sequence[Operation], count: int, traffic: TrafficClass) -> list[int | None]:
        kind = CLASSES[traffic]
        if not self._link.take(kind, count, TURN_S):
            raise Unreachable(f"region {self.descriptor.address}: no turn on the link within {TURN_S:g} s")
        delay_s = -1.0
        quiet, begun = self._link.quiet, time.monotonic()
        try:
            answers = self._inner.post(batch, traffic)
            if traffic is TrafficClass.KV and quiet and self._link.quiet:
                delay_s = self._delay(time.monotonic() - begun)
            return answers
        finally:
            self._link.done(kind, count, delay_s)

    def _delay(self, took_s: float) -> float:
        """The least of the last few is the link's part; what others took longer is the processors'."""
        self._took.append(took_s)
        least = min(self._took)
        self._idle_s = min(self._idle_s, least)
        return least - self._idle_s

    def _check(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if not 0 <= operation.offset <= self.descriptor.length - _bytes(operation):
                raise OutOfBounds(
                    f"region {self.descriptor.address}: bytes [{operation.offset}, +{_bytes(operation)}) of a region "
                    f"of {self.descriptor.length} bytes"
                )


def open_verbs(descriptor: RegionDescriptor) -> RemoteRegion:
    """As VerbsRegion.open; with the arbiter where HOSTLESS_RDMA_LANES says so. Raises ValueError for another word."""
    lanes = os.environ.get(LANES_VARIABLE) or "hardware"
    if lanes not in LANES_BY:
        raise ValueError(f"{LANES_VARIABLE}: {lanes!r} is not one of {', '.join(LANES_BY)}")
    return ArbitratedRegion.open(descriptor) if lanes == "arbiter" else VerbsRegion.open(descriptor)


def chunks(
    operations: Sequence[Operation], size: Callable[[], int]
) -> Iterator[tuple[list[Operation], int, list[bool]]]:
    """Batches of about `size()` bytes in order, their bytes, and whether each operation in them ends one that was
    given. Operations are cut where words end."""
    batch: list[Operation] = []
    ends: list[bool] = []
    count, room = 0, size()
    for operation in operations:
        for piece, last in _pieces(operation, room - count, size):
            batch.append(piece)
            ends.append(last)
            count += _bytes(piece)
            if count >= room - WORD:
                yield batch, count, ends
                batch, ends, count, room = [], [], 0, size()
    if batch:
        yield batch, count, ends


def _pieces(operation: Operation, room: int, size: Callable[[], int]) -> Iterator[tuple[Operation, bool]]:
    length, done = _bytes(operation), 0
    if length <= room or isinstance(operation, Atomic):
        yield operation, True
        return
    flat = np.frombuffer(operation.into if isinstance(operation, Read) else operation.data, np.uint8)
    while done < length:
        end = min(length, done + room)
        if end < length:
            end = max(end - (operation.offset + end) % WORD, done + WORD - (operation.offset + done) % WORD)
            end = min(end, length)
        at, memory = operation.offset + done, flat[done:end]
        yield Read(at, memory) if isinstance(operation, Read) else Write(at, memory), end == length
        done, room = end, size()


def _bytes(operation: Operation) -> int:
    if isinstance(operation, Atomic):
        return WORD
    memory = operation.into if isinstance(operation, Read) else operation.data
    return memory.nbytes if isinstance(memory, np.ndarray | memoryview) else len(memory)
