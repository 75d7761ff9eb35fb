"""An owner's choice of transport: makes regions, and makes them reachable by it."""

from types import TracebackType
from typing import Protocol, Self

from services.common.settings import SettingError, require
from services.fabric.errors import TransportUnavailable, UnknownTransport
from services.fabric.region import MemoryRegion
from services.fabric.rights import Rights
from services.fabric.tcp.agent import TcpPublisher
from services.fabric.verbs.owner import VerbsPublisher

TRANSPORTS = ("shm", "tcp", "verbs")
"""What owners can offer their regions by."""


TRANSPORT_HELP = "how peers reach this service's memory: shm, on this machine; tcp; verbs, by RDMA"
FABRIC_ADDRESS_HELP = (
    "transports tcp and verbs: host:port where peers connect, as they reach it; port 0 picks a free one"
)


class Publisher(Protocol):
    """Makes regions of this process reachable by one transport."""

    def publish(self, region: MemoryRegion) -> None:
        """Sets the region's publication. Raises OSError when the device has no room for it."""
        ...

    def close(self) -> None:
        """Ends what is published still. Idempotent."""
        ...


class RegionHost:
    """Verbs: create regions, close. For any thread."""

    def __init__(self, transport: str, address: str) -> None:
        """`address` is host:port, by which peers reach this process; shm has no use for it, port 0 picks one.

        Raises TransportUnavailable, or OSError when the address can't be listened on.
        """
        self._publisher = _publisher(transport, address)

    @property
    def local(self) -> bool:
        """Peers are on this machine, and map the regions."""
        return self._publisher is None

    def create(self, name: str, length: int, peers_may: Rights) -> MemoryRegion:
        """As MemoryRegion.create, and reachable by the transport of this host. Give peers what they need, no more."""
        region = MemoryRegion.create(name, length, peers_may)
        if self._publisher is not None:
            try:
                self._publisher.publish(region)
            except BaseException:
                region.close()
                raise
        return region

    def close(self) -> None:
        """Idempotent."""
        if self._publisher is not None:
            self._publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def require_transport(transport: str, address: str) -> None:
    """For __post_init__ of settings. Raises SettingError."""
    require(transport in TRANSPORTS, f"transport: {transport!r} is not one of {', '.join(TRANSPORTS)}")
    host, _, port = address.rpartition(":")
    valid = bool(host) and port.isascii() and port.isdigit() and int(port) <= 65535
    require(valid, f"fabric-address: {address!r} is not host:port")
    anywhere = transport != "shm" and host in ("0.0.0.0", "[::]")
    require(not anywhere, f"fabric-address: peers can't reach {host}; name an address of this machine")


def open_host(transport: str, address: str) -> RegionHost:
    """For a service's start. Raises SettingError where this machine lacks what the settings ask for."""
    try:
        return RegionHost(transport, address)
    except TransportUnavailable as error:
        raise SettingError(f"transport: {error}") from None
    except OSError as error:
        raise SettingError(f"fabric-address: {error}") from None


def _publisher(transport: str, address: str) -> Publisher | None:
    match transport:
        case "shm":
            return None
        case "tcp":
            return TcpPublisher(address)
        case "verbs":
            return VerbsPublisher(address)
    raise UnknownTransport(f"transport {transport!r} is not one of {', '.join(TRANSPORTS)}")


SHARED_MEMORY = RegionHost("shm", "")
"""For owners whose peers are all on this machine."""
