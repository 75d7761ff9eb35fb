"""Which transports there are, and opening a region through the one that its descriptor names."""

from collections.abc import Mapping
from types import MappingProxyType

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.errors import UnknownTransport
from services.fabric.remote_region import RemoteRegion
from services.fabric.shm import SharedMemoryRegion
from services.fabric.tcp.region import TcpRegion
from services.fabric.verbs.region import VerbsRegion

TRANSPORTS: Mapping[str, type[RemoteRegion]] = MappingProxyType(
    {"shm": SharedMemoryRegion, "tcp": TcpRegion, "verbs": VerbsRegion}
)


def open_region(descriptor: RegionDescriptor) -> RemoteRegion:
    """Opens a peer's region. Raises UnknownTransport, NotARegion, StaleRegion or WrongKey."""
    try:
        transport = TRANSPORTS[descriptor.transport]
    except KeyError:
        known = ", ".join(sorted(TRANSPORTS))
        raise UnknownTransport(
            f"region {descriptor.address!r} uses transport {descriptor.transport!r}; known: {known}"
        ) from None
    return transport.open(descriptor)
