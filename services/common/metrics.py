"""A service's Prometheus endpoint, for services that serve no HTTP otherwise."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from services.common.rpc import PortTaken


@contextmanager
def serve(address: str, registry: CollectorRegistry) -> Iterator[int]:
    """Serves `registry` at http://address/metrics until the block ends; gives the port. Port 0 picks a free one.

    Runs on threads of its own: collectors must stand being read while the service runs. Raises PortTaken.
    """
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host, registry)
    except (OSError, ValueError) as error:
        raise PortTaken(f"can't serve metrics on {address}: {error}") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
