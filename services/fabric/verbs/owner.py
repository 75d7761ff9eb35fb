"""The owner's side: regions registered with the device, and the ends of the queue pairs that reach them."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from hostless.v1 import fabric_pb2 as pb
from hostless.v1 import fabric_pb2_grpc
from services.fabric import region_file
from services.fabric.errors import FabricError, NoRight, StaleRegion, WrongKey
from services.fabric.lanes import LANES
from services.fabric.operations import TrafficClass
from services.fabric.region import MemoryRegion
from services.fabric.rights import too_many
from services.fabric.verbs.core import Access, Device, QueuePair, access_of
from services.fabric.verbs.device import local_device

log = logging.getLogger(__name__)

MOST_PAIRS = 256
"""Of a process; a peer has one a region and class. Each holds a sleeping thread and some of the NIC's memory."""

OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),  # a peer whose machine is gone frees its queue pair
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class VerbsPublication:
    """A region's registrations: its bytes for what peers do; the page before them for reading, to verify."""

    def __init__(self, device: Device, region: MemoryRegion, address: str) -> None:
        """Raises OSError."""
        self.descriptor = pb.RegionDescriptor(
            transport="verbs",
            address=address,
            length=region.length,
            rkey=region.rkey,
            generation=region.generation,
            rights=region.peers_may,
        )
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._device, self._region = device, region
        self._pairs: dict[QueuePair, threading.Event] = {}
        at = region.view.ctypes.data
        self._access = access_of(region.peers_may)
        self.memory = device.register(at, region.length, self._access)
        page = region_file.PAGE_BYTES
        self.header = device.register(at - page, page, Access.REMOTE_READ)

    @property
    def pairs(self) -> int:
        """Queue pairs that reach the region now."""
        return len(self._pairs)

    def admit(self, request: pb.ConnectRequest, gone: threading.Event) -> tuple[QueuePair, pb.ConnectReply]:
        """This end of a new queue pair, connected; `gone` is set when the region ends.

        Raises StaleRegion, WrongKey, NoRight, FabricError, or ValueError for a traffic class that is none.
        """
        if request.rkey != self.descriptor.rkey:
            raise WrongKey(f"rkey {request.rkey:#x} gives no right to the region of generation {request.generation}")
        if request.rights & ~self.descriptor.rights:
            raise too_many(f"of generation {request.generation}", request.rights, self.descriptor.rights)
        lane = LANES[TrafficClass(request.traffic)]
        pair = self._device.queue_pair(self._access | Access.REMOTE_READ)  # the header is read by all
        try:
            pair.connect(request.end, lane)
            with self._lock:
                if self.ended.is_set():
                    raise StaleRegion(f"the region of generation {request.generation} has ended")
                self._pairs[pair] = gone
        except BaseException:
            pair.close()
            raise
        reply = pb.ConnectReply(
            end=pair.end(),
            address=self._region.view.ctypes.data,
            key=self.memory.remote_key,
            header_address=self._region.view.ctypes.data - region_file.PAGE_BYTES,
            header_key=self.header.remote_key,
        )
        return pair, reply

    def dismiss(self, pair: QueuePair) -> None:
        with self._lock:
            self._pairs.pop(pair, None)
        pair.close()

    def end(self) -> None:
        with self._lock:
            self.ended.set()
            pairs, self._pairs = self._pairs, {}
        for pair, gone in pairs.items():
            pair.close()
            gone.set()
        self.memory.close()
        self.header.close()


class VerbsPublisher(fabric_pb2_grpc.QueuePairsServicer):  # type: ignore[misc]
    """Serves QueuePairs on threads of its own, so that an owner's event loop has no part in it."""

    def __init__(self, address: str) -> None:
        """Port 0 picks a free one. Raises TransportUnavailable, or OSError if the address is taken."""
        self._device = local_device()
        self._published: dict[int, VerbsPublication] = {}
        self._lock = threading.Lock()
        threads = ThreadPoolExecutor(MOST_PAIRS + 4, "fabric-verbs")
        self._server = grpc.server(threads, options=OPTIONS, maximum_concurrent_rpcs=MOST_PAIRS)
        fabric_pb2_grpc.add_QueuePairsServicer_to_server(self, self._server)
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(f"can't listen on {address}: taken by another program, or not an address of this machine")
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self._server.start()
        log.info("regions are offered by RDMA", extra={"device": self._device.name, "address": self.address})

    def publish(self, region: MemoryRegion) -> None:
        publication = VerbsPublication(self._device, region, self.address)
        with self._lock:
            self._published = {key: held for key, held in self._published.items() if not held.ended.is_set()}
            self._published[region.generation] = publication
        region.publish(publication)

    def close(self) -> None:
        with self._lock:
            published, self._published = self._published, {}
        for publication in published.values():
            publication.end()
        self._server.stop(grace=0.5).wait()

    def Connect(self, request: pb.ConnectRequest, context: grpc.ServicerContext) -> Iterator[pb.ConnectReply]:
        publication = self._published.get(request.generation)
        if publication is None or publication.ended.is_set():
            context.abort(grpc.StatusCode.NOT_FOUND, f"generation {request.generation} has ended, or never was here")
        assert publication is not None
        gone = threading.Event()
        try:
            pair, reply = publication.admit(request, gone)
        except WrongKey as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except NoRight as error:
            context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))
        except StaleRegion as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except (FabricError, ValueError) as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        try:
            if not context.add_callback(gone.set):
                return
            yield reply
            gone.wait()
        finally:
            publication.dismiss(pair)
        if publication.ended.is_set():
            context.abort(grpc.StatusCode.NOT_FOUND, f"the region of generation {request.generation} has ended")
