"""Leases: blocks that a reader was promised for a bounded time. Pure; the caller brings the clock."""

from dataclasses import dataclass

from services.kvstore.index import Entry, Index


@dataclass(frozen=True, slots=True)
class Lease:
    entries: list[Entry]
    ends: float


class Leases:
    """Pins blocks of an index until released or expired. Ids are never reused, also not after a restart:
    `epoch` (32 bits) must differ between runs."""

    def __init__(self, index: Index, epoch: int, limit: int) -> None:
        self._index = index
        self._next = (epoch & 0xFFFFFFFF) << 32 | 1
        self._limit = limit
        self._leases: dict[int, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def full(self) -> bool:
        return len(self._leases) >= self._limit

    def grant(self, keys: list[bytes], ttl_s: float, now: float) -> int:
        """Leases stored blocks; returns the lease's id. Not to be called when `full`."""
        lease_id, self._next = self._next, self._next + 1
        self._leases[lease_id] = Lease(self._index.pin(keys), now + ttl_s)
        return lease_id

    def get(self, lease_id: int, now: float) -> Lease | None:
        """The lease, if it holds now."""
        lease = self._leases.get(lease_id)
        return lease if lease is not None and now < lease.ends else None

    def release(self, lease_id: int) -> None:
        """Idempotent."""
        if (lease := self._leases.pop(lease_id, None)) is not None:
            self._index.unpin(lease.entries)

    def expire(self, now: float) -> None:
        for lease_id in [lease_id for lease_id, lease in self._leases.items() if lease.ends <= now]:
            self.release(lease_id)
