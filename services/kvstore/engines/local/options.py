"""What may be chosen about the engine `local`."""

from dataclasses import dataclass

from services.common.settings import require
from services.kvstore import _segments
from services.kvstore.engines.local.places import LARGEST_SEGMENT


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """`queue_depth`: transfers under way of one call. `write_limit_bytes_s`: 0 for none. `segment_bytes`: most that a
    segment file holds. `channels`: calls that use the disks at once; `lanes`: puts among them. `io`: "auto", "io_uring"
    or "threads".
    """

    queue_depth: int = 32
    write_limit_bytes_s: int = 0
    segment_bytes: int = 1 << 30
    channels: int = 6
    lanes: int = 4
    io: str = "auto"

    def __post_init__(self) -> None:
        require(1 <= self.queue_depth <= 1024, f"queue-depth: {self.queue_depth} is not between 1 and 1024")
        require(self.write_limit_bytes_s >= 0, f"write-limit-bytes-s: {self.write_limit_bytes_s} is negative")
        least = _segments.LARGEST_BLOCK + _segments.PAGE
        most = LARGEST_SEGMENT
        require(least <= self.segment_bytes <= most, f"segment-bytes: {self.segment_bytes} is not {least} to {most}")
        require(self.channels > self.lanes >= 1, "channels: must be more than lanes, of which there is at least 1")
