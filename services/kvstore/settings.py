"""Settings of the KV store."""

from dataclasses import dataclass
from pathlib import Path

from services.common import paths
from services.common.settings import require, require_addresses, require_least, setting
from services.fabric.hosting import FABRIC_ADDRESS_HELP, TRANSPORT_HELP, require_transport
from services.kvstore.tickets import GRANULE

ENGINES = ("local", "files", "mooncake")


@dataclass(frozen=True)
class StoreSettings:
    address: str = setting("127.0.0.1:7030", "host:port of the gRPC service; port 0 picks a free one")
    metrics_address: str = setting("127.0.0.1:7031", "host:port of Prometheus metrics; empty: none")
    lane_port: int = setting(0, "port of the lane, on which lookups are fast; 0: a free one, -1: no lane")
    engine: str = setting("local", f"where blocks lie: {', '.join(ENGINES)}; see docs/operations.md")
    path: str = setting(
        "",
        "folder of the blocks; empty: HOSTLESS_STORE, else ~/.cache/hostless/store. Engine local: several, "
        "on a disk each, joined by ':'",
    )
    capacity_bytes: int = setting(4 << 30, "most bytes of blocks on disk; the least recently used go when it is full")
    high_watermark: float = setting(0.95, "share of the capacity above which blocks are evicted ahead of need")
    low_watermark: float = setting(0.90, "share of the capacity down to which they then are")
    root_share: float = setting(1.0, "most of the capacity that one tenant of one model may take")
    keep_share: float = setting(0.25, "most of the capacity that may be kept from eviction by Keep")
    write_buffer_bytes: int = setting(64 << 20, "shared memory for blocks on their way in; also the largest block")
    max_lease_s: float = setting(60.0, "longest lease given to a reader")
    max_leases: int = setting(16384, "leases held at once; lookups beyond are refused")
    ticket_s: float = setting(30.0, "a writer that has not committed for so long loses its place in the buffer")
    read_threads: int = setting(2, "reads served at once")
    max_reads: int = setting(64, "read calls under way or waiting; more are told that the store is busy")
    queue_depth: int = setting(32, "engine local: I/O operations under way on a disk, at most")
    write_limit_bytes_s: int = setting(0, "engine local: most written a second, so that reads stay fast; 0: no limit")
    shared: bool = setting(False, "engine files: other stores use the folder too")
    usrbio: str = setting("", "engine files: mount point of 3FS, to read by its user-space ring; empty: by the kernel")
    mooncake_master: str = setting("127.0.0.1:50051", "engine mooncake: host:port of mooncake_master")
    mooncake_metadata: str = setting("P2PHANDSHAKE", "engine mooncake: its metadata service")
    mooncake_host: str = setting("127.0.0.1", "engine mooncake: address by which other machines reach this one")
    mooncake_protocol: str = setting("tcp", "engine mooncake: tcp or rdma")
    mooncake_devices: str = setting("", "engine mooncake: RDMA devices, joined by commas")
    mooncake_segment_bytes: int = setting(1 << 30, "engine mooncake: memory that this store gives to the pool")
    mooncake_replicas: int = setting(1, "engine mooncake: copies of each block in the pool")
    transport: str = setting("shm", TRANSPORT_HELP)
    fabric_address: str = setting("127.0.0.1:0", FABRIC_ADDRESS_HELP)
    log_level: str = setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        require_addresses(self, "address", "mooncake_master", or_empty=("metrics_address",))
        require(self.engine in ENGINES, f"engine: {self.engine!r} is not one of {', '.join(ENGINES)}")
        require_transport(self.transport, self.fabric_address)
        require_least(self, 1, "capacity_bytes", "max_leases", "read_threads", "max_reads", "queue_depth")
        require_least(self, 1, "mooncake_replicas")
        require(-1 <= self.lane_port <= 65535, f"lane-port: {self.lane_port} is no port, nor 0 or -1")
        require_least(self, 0, "write_limit_bytes_s", "mooncake_segment_bytes")
        require_least(self, GRANULE, "write_buffer_bytes")
        require(0 < self.max_lease_s <= 3600, f"max-lease-s: {self.max_lease_s} is not between 0 and 3600")
        require(0 < self.ticket_s <= 3600, f"ticket-s: {self.ticket_s} is not between 0 and 3600")
        for name in ("high_watermark", "low_watermark", "root_share", "keep_share"):
            value = getattr(self, name)
            require(0 < value <= 1, f"{name.replace('_', '-')}: {value} is not between 0 and 1")
        require(
            self.low_watermark <= self.high_watermark,
            f"low-watermark: {self.low_watermark} is above the high one, {self.high_watermark}",
        )
        require(self.engine == "local" or len(self.folders) == 1, f"path: engine {self.engine} takes one folder")

    @property
    def folders(self) -> list[Path]:
        return [Path(part) for part in self.path.split(":") if part] or [paths.store_dir()]

    @property
    def folder(self) -> Path:
        return self.folders[0]
