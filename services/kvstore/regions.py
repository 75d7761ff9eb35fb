"""Peers' regions that the store writes to, kept open: mapping one anew costs more than reading a block into it."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.errors import FabricError
from services.fabric.remote_region import RemoteRegion
from services.fabric.transports import open_region
from services.kvstore import _segments
from services.kvstore.engines import StorageEngine

log = logging.getLogger(__name__)

_Id = tuple[str, str, int, int, int]


@dataclass(slots=True, eq=False)
class _Open:
    region: RemoteRegion
    users: int = 0


class Regions:
    """At most `limit` regions that nobody uses stay open. For any thread."""

    def __init__(self, engine: StorageEngine, limit: int = 64) -> None:
        self._engine, self._limit = engine, limit
        self._open: dict[_Id, _Open] = {}  # least recently used first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def use(self, descriptor: RegionDescriptor) -> Iterator[RemoteRegion]:
        """The peer's region, its right verified. Raises FabricError."""
        key = (
            descriptor.transport,
            descriptor.address,
            descriptor.length,
            descriptor.rkey,
            descriptor.generation,
        )
        entry = self._enter(key, descriptor)
        try:
            entry.region.verify()
            yield entry.region
        finally:
            with self._lock:
                entry.users -= 1

    def sweep(self) -> None:
        """Closes what ended, so that its memory goes back, and the oldest beyond the limit. Over a network, it asks
        the owners and waits for them."""
        with self._lock:
            idle = {key: entry.region for key, entry in self._open.items() if not entry.users}
            surplus = list(idle)[: max(0, len(self._open) - self._limit)]
        ended = [key for key, region in idle.items() if key not in surplus and not _alive(region)]
        with self._lock:
            unused = [key for key in (*surplus, *ended) if key in self._open and not self._open[key].users]
            closing = [self._open.pop(key) for key in unused]
        for entry in closing:
            self._close(entry)

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._close(self._open.popitem()[1])

    def _enter(self, key: _Id, descriptor: RegionDescriptor) -> _Open:
        """Connects outside the lock: an owner that doesn't answer holds up its own reader only."""
        with self._lock:
            if key in self._open:
                return self._used(key, self._open.pop(key))
        fresh = self._map(descriptor)
        with self._lock:
            entry = self._used(key, self._open.pop(key, fresh))
        if entry is not fresh:  # another thread was as quick
            self._close(fresh)
        return entry

    def _used(self, key: _Id, entry: _Open) -> _Open:
        self._open[key] = entry
        entry.users += 1
        return entry

    def _map(self, descriptor: RegionDescriptor) -> _Open:
        region = open_region(descriptor)
        if (memory := region.mapped()) is not None:
            guard(memory)
            self._engine.register(memory)
        return _Open(region)

    def _close(self, entry: _Open) -> None:
        if (memory := entry.region.mapped()) is not None:
            self._engine.unregister(memory)
            _segments.unguard(memory)
        entry.region.close()


def guard(memory: memoryview) -> None:
    """A peer that cuts this memory short then spoils its own requests, not this process; until _segments.unguard."""
    if not _segments.guard(memory):
        log.warning("memory is not guarded: a peer that cuts it short ends this store", extra={"bytes": len(memory)})


def _alive(region: RemoteRegion) -> bool:
    try:
        region.verify()
    except FabricError:
        return False
    return True
