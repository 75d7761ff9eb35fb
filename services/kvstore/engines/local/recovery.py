"""What a segment file of an earlier run holds: by its footer, or, when a crash left none, by its blocks' pages.

Nothing but pages is read, but for blocks that were under way when the store died: their bytes are verified.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.kvstore import _segments
from services.kvstore.engines.local import record as on_disk
from services.kvstore.engines.local.holes import Span, data_spans, without
from services.kvstore.engines.local.record import PAGE, Record

_WINDOW = 1 << 20
"""Read at once where pages of blocks are looked for among bytes of lost ones."""


@dataclass(frozen=True, slots=True)
class Found:
    """`records` in order of offset. `doubtful` ones among them may not be whole. `spans` hold data; `kept` are those
    that are no blocks and stay."""

    records: list[Record]
    doubtful: list[Record]
    spans: list[Span]
    kept: list[Span]
    sealed: bool

    def rubbish(self, alive: list[Record]) -> list[Span]:
        """What is left of lost blocks, once it is known which are alive."""
        blocks = [(record.offset, record.end) for record in alive]
        return list(without(self.spans, sorted([*self.kept, *blocks])))


def inspect(path: Path, nonce: int) -> Found:
    """Reads a segment file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        spans = list(data_spans(fd))
        size = os.fstat(fd).st_size
        if (footed := _by_footer(fd, size, nonce)) is not None:
            records, begin = footed
            starts = _Starts(spans)
            alive = [record for record in records if starts.hold(record.offset)]
            return Found(alive, [], spans, [(begin, size)], True)
        records = list(_by_pages(fd, spans, nonce))
        synced = max((record.synced_below for record in records), default=0)
        doubtful = [record for record in records if record.offset >= synced]
        return Found(records, doubtful, spans, [], False)
    finally:
        os.close(fd)


class _Starts:
    """Whether a page holds data, asked for ascending offsets."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = iter(spans)
        self._span = next(self._spans, None)

    def hold(self, offset: int) -> bool:
        while self._span is not None and self._span[1] <= offset:
            self._span = next(self._spans, None)
        return self._span is not None and self._span[0] <= offset


def _by_footer(fd: int, size: int, nonce: int) -> tuple[list[Record], int] | None:
    """The blocks that the footer lists, also those removed since, and where it begins."""
    if size < 2 * PAGE or size % PAGE:
        return None
    place = on_disk.parse_trailer(os.pread(fd, PAGE, size - PAGE), nonce)
    if place is None:
        return None
    offset, length, crc = place
    data = os.pread(fd, length, offset)
    if len(data) != length or _segments.crc32c(data) != crc:
        return None
    return sorted(on_disk.parse_footer(data), key=lambda record: record.offset), offset


def _by_pages(fd: int, spans: list[Span], nonce: int) -> Iterator[Record]:
    """A block's page is where the one before it ended, or, behind a lost block, anywhere: there, pages are searched."""
    at = 0
    for begin, end in spans:
        at = max(at, begin)
        window, window_at, searching = b"", 0, False
        while at < end:
            if not window_at <= at < window_at + len(window):
                window, window_at = os.pread(fd, _WINDOW if searching else PAGE, at), at
                if len(window) < PAGE:
                    break
            found = on_disk.parse_block(window[at - window_at : at - window_at + PAGE], nonce, at)
            searching = found is None
            if found is None:
                at += PAGE
            else:
                yield found
                at = found.end
