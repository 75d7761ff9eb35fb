"""A peer's connection to a region for one traffic class: the queue pair, and the call that it lives as long as."""

import queue
import threading
from collections.abc import Iterator

import grpc

from hostless.v1 import fabric_pb2 as pb
from hostless.v1 import fabric_pb2_grpc
from services.fabric import region_file
from services.fabric.errors import FabricError, NoRight, StaleRegion, Unreachable, WrongKey
from services.fabric.lanes import LANES
from services.fabric.operations import TrafficClass
from services.fabric.verbs.core import STAGING_BYTES, Device, Far

CONNECT_S = 5.0
OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Connection:
    """Not for two threads at a time. One that failed stays failed: make another.

    `pair` runs operations on `memory`, the region, and reads of `header`, the page before it.
    """

    def __init__(self, device: Device, descriptor: pb.RegionDescriptor, traffic: TrafficClass) -> None:
        """Raises StaleRegion, WrongKey, NoRight, Unreachable, or another FabricError."""
        self._ended: FabricError | None = None
        self.pair = device.queue_pair(staging_bytes=STAGING_BYTES)
        self._channel = grpc.insecure_channel(descriptor.address, options=OPTIONS)
        request = pb.ConnectRequest(
            generation=descriptor.generation,
            rkey=descriptor.rkey,
            traffic=traffic.value,
            end=self.pair.end(),
            rights=descriptor.rights,
        )
        try:
            far = self._meet(request)
            self.pair.connect(far.end, LANES[traffic])
        except BaseException:
            self.close()
            raise
        self.memory = Far(far.address, descriptor.length, far.key)
        self.header = Far(far.header_address, region_file.PAGE_BYTES, far.header_key)

    def failed(self, error: FabricError) -> FabricError:
        """Of the pair, which is of no use any more. Answers what explains it: the owner may have told why before."""
        self._ended = self._ended or error
        return self._ended

    @property
    def alive(self) -> bool:
        """As far as is known: nothing has failed, and the owner has not ended it."""
        return self._ended is None

    def close(self) -> None:
        """Idempotent."""
        self._channel.close()
        self.pair.close()

    def _meet(self, request: pb.ConnectRequest) -> pb.ConnectReply:
        answers: queue.SimpleQueue[pb.ConnectReply | FabricError] = queue.SimpleQueue()
        call = fabric_pb2_grpc.QueuePairsStub(self._channel).Connect(request)
        threading.Thread(target=self._watch, args=(call, answers), name="fabric-verbs-watch", daemon=True).start()
        try:
            answer = answers.get(timeout=CONNECT_S)
        except queue.Empty:
            raise Unreachable(f"the owner does not answer within {CONNECT_S:g} s") from None
        if isinstance(answer, FabricError):
            raise answer
        return answer

    def _watch(
        self, call: Iterator[pb.ConnectReply], answers: "queue.SimpleQueue[pb.ConnectReply | FabricError]"
    ) -> None:
        """Waits for the end of the call, which is the end of the queue pair."""
        error: FabricError = StaleRegion("the owner has ended the connection")
        try:
            for answer in call:
                answers.put(answer)
        except grpc.RpcError as failure:
            error = _refusal(failure)
        self._ended = self._ended or error
        self.pair.lose()
        answers.put(error)


def _refusal(failure: grpc.RpcError) -> FabricError:
    code, text = failure.code(), failure.details()
    if code is grpc.StatusCode.NOT_FOUND:
        return StaleRegion(f"{text}; ask its owner for a new descriptor")
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return WrongKey(text)
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return NoRight(text)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
        return Unreachable(f"the owner is gone, or the network to it is down: {text}")
    return FabricError(f"{code.name}: {text}")
