"""Leases: blocks that a reader was promised for a bounded time. Pure; the caller brings the clock."""

import heapq
from dataclasses import dataclass

from services.kvstore._index import BlockIndex


@dataclass(frozen=True, slots=True)
class Lease:
    """`pins` are the index's; `count` blocks."""

    pins: bytes
    count: int
    ends: float


class Leases:
    """Pins blocks of an index until released or expired. Ids are never reused, also not after a restart:
    `epoch` (32 bits) must differ between runs."""

    def __init__(self, index: BlockIndex, epoch: int, limit: int) -> None:
        self._index = index
        self._next = (epoch & 0xFFFFFFFF) << 32 | 1
        self._limit = limit
        self._leases: dict[int, Lease] = {}
        self._ends: list[tuple[float, int]] = []  # heap; leases that were released come up in their time

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def full(self) -> bool:
        return len(self._leases) >= self._limit

    def grant(self, keys: bytes, ttl_s: float, now: float) -> tuple[int, int]:
        """Leases the stored run that `keys` begin with: the lease's id (0: no block is stored, no lease) and blocks.
        Not to be called when `full`."""
        pins = self._index.pin_run(keys)
        if not pins:
            return 0, 0
        lease_id, self._next = self._next, self._next + 1
        lease = Lease(pins, len(pins) // 4, now + ttl_s)
        self._leases[lease_id] = lease
        heapq.heappush(self._ends, (lease.ends, lease_id))
        if len(self._ends) > 2 * len(self._leases) + 64:
            self._ends = [(lease.ends, lease_id) for lease_id, lease in self._leases.items()]
            heapq.heapify(self._ends)
        return lease_id, lease.count

    def get(self, lease_id: int, now: float) -> Lease | None:
        """The lease, if it holds now."""
        lease = self._leases.get(lease_id)
        return lease if lease is not None and now < lease.ends else None

    def release(self, lease_id: int) -> None:
        """Idempotent."""
        if (lease := self._leases.pop(lease_id, None)) is not None:
            self._index.unpin(lease.pins)

    def expire(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            self.release(heapq.heappop(self._ends)[1])
