"""The owner's side: regions that the native agent of this process serves."""

import logging

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric import _tcp
from services.fabric.region import MemoryRegion
from services.fabric.tcp.address import split

log = logging.getLogger(__name__)


class TcpPublication:
    """A region that peers reach until end()."""

    def __init__(self, agent: _tcp.Agent, region: MemoryRegion, address: str) -> None:
        self.descriptor = RegionDescriptor(
            transport="tcp",
            address=address,
            length=region.length,
            rkey=region.rkey,
            generation=region.generation,
            rights=region.peers_may,
        )
        self._agent = agent
        self._memory = region.view  # what the agent touches stays mapped
        agent.publish(region.generation, region.rkey, int(region.peers_may), self._memory)

    def end(self) -> None:
        self._agent.end(self.descriptor.generation)


class TcpPublisher:
    """The agent of a process: one thread, whatever the number of regions and peers."""

    def __init__(self, address: str) -> None:
        """`address` is what peers connect to; port 0 picks a free one. Raises OSError if it can't be listened on."""
        host, port = split(address)
        try:
            self._agent = _tcp.Agent(host, port)
        except (OSError, RuntimeError) as error:
            raise OSError(f"can't listen on {address} for peers: {error}") from None
        self.address = f"{address.rpartition(':')[0]}:{self._agent.port}"
        log.info("regions are offered by TCP", extra={"address": self.address})

    @property
    def connections(self) -> int:
        """Of peers, now: one a peer's region and traffic class."""
        return self._agent.connections

    def publish(self, region: MemoryRegion) -> None:
        region.publish(TcpPublication(self._agent, region, self.address))

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        self._agent.close()
