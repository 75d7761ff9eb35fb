"""A service's Prometheus endpoint, for services that serve no HTTP otherwise."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from services.common.rpc import PortTaken

log = logging.getLogger(__name__)


@contextmanager
def serve(address: str, registry: CollectorRegistry) -> Iterator[None]:
    """Serves `registry` at http://address/metrics until the block ends. Port 0 picks a free one, which the log tells;
    an empty address: nothing is served.

    Runs on threads of its own: collectors must stand being read while the service runs. Raises PortTaken.
    """
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host, registry)
    except (OSError, ValueError) as error:
        raise PortTaken(f"can't serve metrics on {address}: {error}") from None
    try:
        log.info("metrics", extra={"port": server.server_port})
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
