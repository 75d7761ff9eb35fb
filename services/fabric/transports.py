"""Which transports there are, and opening a region through the one that its descriptor names."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.errors import UnknownTransport
from services.fabric.remote_region import RemoteRegion
from services.fabric.shm import SharedMemoryRegion
from services.fabric.tcp.region import TcpRegion
from services.fabric.verbs.arbitrated import open_verbs

TRANSPORTS: Mapping[str, Callable[[RegionDescriptor], RemoteRegion]] = MappingProxyType(
    {"shm": SharedMemoryRegion.open, "tcp": TcpRegion.open, "verbs": open_verbs}
)


def open_region(descriptor: RegionDescriptor) -> RemoteRegion:
    """Opens a peer's region. Raises UnknownTransport, NotARegion, StaleRegion or WrongKey."""
    try:
        open_it = TRANSPORTS[descriptor.transport]
    except KeyError:
        known = ", ".join(sorted(TRANSPORTS))
        raise UnknownTransport(
            f"region {descriptor.address!r} uses transport {descriptor.transport!r}; known: {known}"
        ) from None
    return open_it(descriptor)
