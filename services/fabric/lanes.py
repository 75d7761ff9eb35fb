"""Where a traffic class travels: what its packets carry so that switches and NICs can tell (D8)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from services.fabric.operations import TrafficClass


@dataclass(frozen=True, slots=True)
class Lane:
    """service_level: InfiniBand's, 0-15. dscp: of RoCE's IP packets, 0-63. flow_label: 20 bits, for paths of equal
    cost: the classes may take different ones."""

    service_level: int
    dscp: int
    flow_label: int

    @property
    def traffic_class(self) -> int:
        """The byte of the IP header: DSCP, and two bits of ECN that the NIC sets."""
        return self.dscp << 2


LANES: Mapping[TrafficClass, Lane] = MappingProxyType(
    {TrafficClass.MODEL: Lane(1, 26, 0x10001), TrafficClass.KV: Lane(0, 10, 0x20002)}
)
"""DSCP 26 (AF31) and 10 (AF11); docs/operations.md says what switches have to make of them."""
