"""Where the decode side's buffer of one prompt lies, as the prefill side is told."""

from dataclasses import dataclass

from hostless.v1.engine_pb2 import OpenTransferReply
from hostless.v1.fabric_pb2 import RegionDescriptor

ON_DEVICE = "cuda"
"""The region's transport where it is a GPU's memory: its address is then CUDA's handle, for processes of a machine."""


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Full Blocks one behind the other, in a region of their own, or in a part of one that goes on: then who touches it
    holds its gate (fabric/gate.py) meanwhile."""

    region: RegionDescriptor
    blocks: int
    first_byte: int = 0
    gate: RegionDescriptor | None = None

    @property
    def on_device(self) -> bool:
        return str(self.region.transport) == ON_DEVICE


def reply_of(place: BufferPlace, hit: range) -> OpenTransferReply:
    return OpenTransferReply(
        buffer=place.region, blocks=place.blocks, first_byte=place.first_byte, gate=place.gate,
        first_block=hit.start, hit_blocks=len(hit),
    )  # fmt: skip


def place_of(reply: OpenTransferReply) -> tuple[BufferPlace, range]:
    gate = reply.gate if reply.HasField("gate") else None
    place = BufferPlace(reply.buffer, reply.blocks, reply.first_byte, gate)
    return place, range(reply.first_block, reply.first_block + reply.hit_blocks)
