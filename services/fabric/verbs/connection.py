"""A peer's connection to a region for one traffic class: the queue pair, and the call that it lives as long as."""

import queue
import threading
from collections.abc import Iterator, Sequence

import grpc
import numpy as np
from numpy.typing import NDArray

from hostless.v1 import fabric_pb2 as pb
from hostless.v1 import fabric_pb2_grpc
from services.fabric.errors import FabricError, StaleRegion, Unreachable, WrongKey
from services.fabric.operations import TrafficClass
from services.fabric.verbs.device import RdmaDevice
from services.fabric.verbs.lanes import LANES
from services.fabric.verbs.queue_pair import Lost, QueuePair, Request

CONNECT_S = 5.0
STAGING_BYTES = 2 << 20
"""Registered memory of a connection, through which everything moves; the most of a doorbell."""

OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Connection:
    """Not for two threads at a time. One that failed stays failed: make another.

    `staging` is this end's memory, `staging_at` its address; `far` is what the owner told.
    """

    def __init__(self, device: RdmaDevice, descriptor: pb.RegionDescriptor, traffic: TrafficClass) -> None:
        """Raises StaleRegion, WrongKey, Unreachable, FabricError, or OSError when memory can't be registered."""
        self._lost = Lost()
        self.staging: NDArray[np.uint8] = np.zeros(STAGING_BYTES, np.uint8)
        self.staging_at = self.staging.ctypes.data
        self._memory = device.register(self.staging_at, STAGING_BYTES, device.enums.IBV_ACCESS_LOCAL_WRITE)
        self._pair = QueuePair(device)
        self._channel = grpc.insecure_channel(descriptor.address, options=OPTIONS)
        request = pb.ConnectRequest(
            generation=descriptor.generation, rkey=descriptor.rkey, traffic=traffic.value, end=self._pair.end()
        )
        try:
            self.far = self._meet(request)
            self._pair.connect(self.far.end, LANES[traffic])
        except BaseException:
            self.close()
            raise

    def run(self, requests: Sequence[Request], remote_key: int) -> None:
        """As QueuePair.run; what the owner tells meanwhile ends it too."""
        self._lost.check()
        try:
            self._pair.run(requests, self._memory.local_key, remote_key, self._lost)
        except FabricError as error:
            self._lost.reason = self._lost.reason or error
            raise

    @property
    def alive(self) -> bool:
        """As far as is known: nothing has failed, and the owner has not ended it."""
        return self._lost.reason is None

    def close(self) -> None:
        """Idempotent."""
        self._channel.close()
        self._pair.close()
        self._memory.close()

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
        self._lost.reason = self._lost.reason or error
        answers.put(error)


def _refusal(failure: grpc.RpcError) -> FabricError:
    code, text = failure.code(), failure.details()
    if code is grpc.StatusCode.NOT_FOUND:
        return StaleRegion(f"{text}; ask its owner for a new descriptor")
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return WrongKey(text)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
        return Unreachable(f"the owner is gone, or the network to it is down: {text}")
    return FabricError(f"{code.name}: {text}")
