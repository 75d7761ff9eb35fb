"""Settings of the KV store."""

from dataclasses import dataclass
from pathlib import Path

from services.common import paths
from services.common.settings import require, require_addresses, require_least, setting
from services.kvstore.tickets import GRANULE


@dataclass(frozen=True)
class StoreSettings:
    address: str = setting("127.0.0.1:7030", "host:port of the gRPC service; port 0 picks a free one")
    metrics_address: str = setting("127.0.0.1:7031", "host:port of Prometheus metrics; empty: none")
    path: str = setting("", "folder of the blocks; empty: HOSTLESS_STORE, else ~/.cache/hostless/store")
    capacity_bytes: int = setting(4 << 30, "most bytes of block files; the least recently used go when it is full")
    write_buffer_bytes: int = setting(64 << 20, "shared memory for blocks on their way in; also the largest block")
    max_lease_s: float = setting(60.0, "longest lease given to a reader")
    max_leases: int = setting(16384, "leases held at once; lookups beyond are refused")
    ticket_s: float = setting(30.0, "a writer that has not committed for so long loses its place in the buffer")
    read_threads: int = setting(2, "blocks read from disk at once")
    max_reads: int = setting(64, "read calls under way or waiting; more are told that the store is busy")
    log_level: str = setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        require_addresses(self, "address", or_empty=("metrics_address",))
        require_least(self, 1, "capacity_bytes", "max_leases", "read_threads", "max_reads")
        require_least(self, GRANULE, "write_buffer_bytes")
        require(0 < self.max_lease_s <= 3600, f"max-lease-s: {self.max_lease_s} is not between 0 and 3600")
        require(0 < self.ticket_s <= 3600, f"ticket-s: {self.ticket_s} is not between 0 and 3600")

    @property
    def folder(self) -> Path:
        return Path(self.path) if self.path else paths.store_dir()
