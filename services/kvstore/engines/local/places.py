"""Where each block lies, and which segments are still needed. The engine's only shared state, behind one lock."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from services.kvstore import _segments
from services.kvstore.engines.local.record import PAGE, Record
from services.kvstore.engines.local.segment import Segment

_PAGES_BITS, _AT_BITS = 14, 24
LARGEST_SEGMENT = PAGE << _AT_BITS


@dataclass(frozen=True, slots=True)
class Place:
    segment: Segment
    offset: int
    end: int


class Places:
    """A segment goes when it is closed, holds no block and nobody uses it: `dispose` is then called, once, outside the
    lock. All methods may be called by any thread."""

    def __init__(self, dispose: Callable[[Segment], None]) -> None:
        self._dispose = dispose
        self._lock = threading.Lock()
        self._segments: dict[int, Segment] = {}
        self._next = 0
        self._places = _segments.PlaceTable()
        """Segment's id, first page and count of pages in one number."""

    def __len__(self) -> int:
        return len(self._places)

    @property
    def memory(self) -> int:
        """Bytes that the table of places takes: 32 to 64 a block."""
        return self._places.memory

    def open_segment(self, segment: Segment) -> None:
        with self._lock:
            segment.id, self._next = self._next, self._next + 1
            self._segments[segment.id] = segment

    def add(self, segment: Segment, records: Sequence[Record]) -> list[Place]:
        """Makes blocks visible; returns where older copies of them lie, whose room is to be freed with `using`."""
        with self._lock:
            replaced = []
            for record in records:
                pages = (record.end - record.offset) // PAGE
                packed = ((segment.id << _AT_BITS | record.offset // PAGE) << _PAGES_BITS) | pages
                if before := self._places.set(record.stored.key, packed):
                    replaced.append(self._leave(before))
                segment.live += 1
                if not segment.closed:
                    segment.appended[record.offset] = record
            return replaced

    def forget(self, key: bytes) -> Place | None:
        """Makes a block invisible and keeps its segment until `done`."""
        with self._lock:
            packed = self._places.pop(key)
            return self._leave(packed) if packed else None

    def done(self, segments: Sequence[Segment]) -> None:
        """Ends what `forget`, `add` or `using` said that it uses, once each."""
        gone = []
        with self._lock:
            for segment in segments:
                segment.users -= 1
                if self._gone(segment):
                    gone.append(segment)
        for segment in gone:
            self._dispose(segment)

    @contextlib.contextmanager
    def using(self, keys: Sequence[bytes]) -> Iterator[list[Place | None]]:
        """Where blocks lie; their segments stay while the context lasts."""
        with self._lock:
            packed = [self._places.get(key) for key in keys]
            places = [self._place(one) if one else None for one in packed]
            used = [place.segment for place in places if place is not None]
            for segment in used:
                segment.users += 1
        try:
            yield places
        finally:
            self.done(used)

    def close_segment(self, segment: Segment) -> list[Record]:
        """Nothing is appended any more. Returns what a footer should list; the segment stays until `done`."""
        with self._lock:
            records = [segment.appended[offset] for offset in sorted(segment.appended)]
            segment.appended, segment.closed = {}, True
            segment.users += 1
            return records

    def all_segments(self) -> list[Segment]:
        with self._lock:
            return list(self._segments.values())

    def _place(self, packed: int) -> Place:
        segment = self._segments[packed >> (_PAGES_BITS + _AT_BITS)]
        offset = (packed >> _PAGES_BITS & (1 << _AT_BITS) - 1) * PAGE
        return Place(segment, offset, offset + (packed & (1 << _PAGES_BITS) - 1) * PAGE)

    def _leave(self, packed: int) -> Place:
        place = self._place(packed)
        place.segment.live -= 1
        place.segment.appended.pop(place.offset, None)
        place.segment.users += 1
        return place

    def _gone(self, segment: Segment) -> bool:
        if not segment.closed or segment.live or segment.users or segment.id < 0:
            return False
        del self._segments[segment.id]
        segment.id = -1
        return True
